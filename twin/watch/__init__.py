"""The twin beside the real server: its counters, interval by interval, against what the lane should do."""
