"""Questions over many predictions: sweep, schedule, capacity, levers, explain."""
