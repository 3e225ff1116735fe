"""From a corpus to pre-training records."""
