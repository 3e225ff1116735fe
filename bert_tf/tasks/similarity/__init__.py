"""Vectors of texts, trained by run_similarity.py."""
