"""The one place that touches private parts of torch, each behind a feature check with a test."""
