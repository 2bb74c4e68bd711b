"""Offers in a folder of JSON-lines files."""

EVERY_FILE = "*.jsonl"
"""The files that are read where a query does not say which."""
