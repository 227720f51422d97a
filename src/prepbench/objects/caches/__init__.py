"""What is known of caches: they count, they fill, and empty ones have another form."""
