"""Named entities and other tags of words."""
