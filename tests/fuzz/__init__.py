"""Random command lines and broken files against the command line; `python -m tests.fuzz --help`."""
