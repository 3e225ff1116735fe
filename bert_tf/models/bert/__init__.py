"""BERT: the encoder, the names of its variables, and the layouts of other libraries."""
