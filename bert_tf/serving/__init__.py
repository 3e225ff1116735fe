"""Exported models and predictors."""
