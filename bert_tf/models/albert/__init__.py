"""ALBERT: layers share their weights, and embedding tables are narrow (Lan et al. 2019, arXiv:1909.11942)."""
