"""Stored measurements: the results of compiles, and the journal that keeps them for several writers."""
