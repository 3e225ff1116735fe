"""Encoders, heads and objectives in Keras, and the directories that hold their weights."""
