"""What Python objects consist of."""
