"""Readers of what people already have: bench results, metrics pages, logs, traces."""
