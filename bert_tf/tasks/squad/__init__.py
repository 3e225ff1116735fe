"""Questions on texts: SQuAD and data like it."""
