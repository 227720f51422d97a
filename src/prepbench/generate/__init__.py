"""Generation on a compiled model: its methods such as ``generate``, a greedy loop, and files for other libraries."""
