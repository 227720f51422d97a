"""Measurements that last: what was compiled and measured, and the journal that keeps it for several writers."""
