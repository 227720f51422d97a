"""Sizes: dynamic axes, resized samples, and guards of a graph on sizes."""
