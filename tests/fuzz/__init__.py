"""``make fuzz``: random small programs, compiled and called at random sizes and edge values, beside eager PyTorch."""
