"""Change a model so that it needs less computation: pruning, adapters, recovery training. Knows no target."""
