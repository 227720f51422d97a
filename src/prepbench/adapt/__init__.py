"""Changing what a model computes so that less of it is needed: pruning, adapters, training back. Knows no target."""
