"""Statements of a user's function that are cut out of it, so that a graph can hold them as one operator."""
