"""The scripts: `python NAME.py` in a checkout, `bert-tf NAME` where the package is installed."""
