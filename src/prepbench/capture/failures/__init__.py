"""Failures: why something cannot be captured, at which line, and what to do about it."""
