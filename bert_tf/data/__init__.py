"""Records and tables in, batches out."""
