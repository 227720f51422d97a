"""Remove whole channels: find which belong together, and make a smaller program that computes the same without them."""
