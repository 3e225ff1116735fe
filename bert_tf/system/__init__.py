"""Files, processes and messages: nothing specific to BERT."""
