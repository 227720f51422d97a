"""What stays in Python of a compiled model: how it is saved, and how it is found again in the model handed in."""
