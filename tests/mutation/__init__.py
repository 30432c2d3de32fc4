"""Mutation testing of the core: `python -m tests.mutation --help`."""
