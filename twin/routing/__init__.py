"""Which experts a batch touches."""
