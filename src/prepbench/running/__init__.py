"""Run a user's model: recorded calls, reversible replacements and input checks."""
