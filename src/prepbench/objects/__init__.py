"""What Python objects consist of: their parts, copies, restoring, comparisons, flattening and digests."""
