"""The parts of a compiled model that stay in Python: saving them, and finding them in the model handed in."""
