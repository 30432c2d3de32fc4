"""A running server: arrivals, scheduler, KV and prefix tiers, metrics."""
