"""Calls of a compiled model: arguments to flat leaves, leaves to results, and the checks of both."""
