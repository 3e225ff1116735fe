"""ELECTRA: a discriminator finds the words that a small generator replaced (Clark et al. 2020, arXiv:2003.10555)."""
