"""Conversion between weight formats, and rows for new words."""
