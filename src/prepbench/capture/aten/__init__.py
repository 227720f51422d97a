"""ATen graphs: exported programs, with leaves as custom operators."""
