"""Multiple choice: SWAG and data like it."""
