"""What Python objects consist of, and digests of them."""
