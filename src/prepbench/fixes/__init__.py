"""Changes to a model's source that make it traceable, checked against the original."""
