"""Models on disk: directories, weights of all formats, their names, heads and cards."""
