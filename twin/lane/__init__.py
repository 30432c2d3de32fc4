"""What a box is: devices, links, a checkpoint, an engine, a placement, and the lane they make."""
