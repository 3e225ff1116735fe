"""Sentences and pairs of sentences: GLUE, XNLI and data like them."""
