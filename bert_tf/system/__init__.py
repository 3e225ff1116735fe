"""Files, processes and messages: nothing that knows what BERT is."""
