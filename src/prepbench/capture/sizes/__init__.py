"""Sizes: which axes vary, samples of other sizes, and what a graph asks of a size."""
