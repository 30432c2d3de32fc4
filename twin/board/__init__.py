"""A local page to play with a lane: controls, predictions, comparisons, receipts. Nothing leaves the machine."""
