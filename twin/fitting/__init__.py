"""Receipts, parameters, fit, identifiability, validation."""
