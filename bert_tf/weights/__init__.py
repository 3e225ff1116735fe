"""Weight files of other formats, as mappings from names to arrays."""
