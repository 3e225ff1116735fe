"""The demo: `python -m demo` pre-trains a small BERT on any text in minutes."""
