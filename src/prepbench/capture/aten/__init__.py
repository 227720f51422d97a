"""ATen graphs: exported programs, with leaf modules as custom operators."""
