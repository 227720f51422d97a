"""Run a user's model: nested values, state, recorded calls, reversible replacements and input checks."""
