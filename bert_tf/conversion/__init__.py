"""Between weight formats, and surgery on vocabularies."""
