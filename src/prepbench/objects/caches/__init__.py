"""Caches: they count, they fill, and empty ones have another form."""
