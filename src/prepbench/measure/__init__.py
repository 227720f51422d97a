"""Measuring models: accuracy, latency (in one process for each) and size on disk. ``pb.compare`` is ``run.compare``."""
