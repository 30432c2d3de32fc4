"""The pages run: `python -m tests.docs` runs all of them, `--update` writes what was printed into them."""
