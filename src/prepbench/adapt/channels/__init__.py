"""Removing whole channels: which belong together, and a smaller program that computes the same without them."""
