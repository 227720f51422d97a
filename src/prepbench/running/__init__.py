"""Running somebody's model: nested values, state, recorded calls, replacements that are undone, and input checks."""
