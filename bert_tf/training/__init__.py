"""The training loop and everything that a run writes."""
