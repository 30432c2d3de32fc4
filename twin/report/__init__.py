"""Results as text, JSON, HTML, plots and traces."""
