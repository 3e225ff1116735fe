"""Features of a frozen encoder."""
