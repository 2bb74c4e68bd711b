"""Benchmark programs of the libraries Penstock compares itself with."""
