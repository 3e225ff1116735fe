"""Files of weights of other formats, as mappings from names to arrays."""
