"""Research experiments; not part of the product."""
