"""Models on disk: directories, weights of all formats, cards."""
