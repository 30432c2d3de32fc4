"""How long a verify step takes."""
