"""The families of models: their configurations, tokenizers and recipes."""
