"""Partitions: which run of which slice of landed data is safe to consume, and how runs come to be."""
