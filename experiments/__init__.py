"""Runs that answer a question: no part of the product."""
