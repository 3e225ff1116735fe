"""What a model is: its configuration, family, head, recipe and the names of its variables."""
