"""The demo: `python -m demo` pre-trains a small BERT from any text in minutes."""
