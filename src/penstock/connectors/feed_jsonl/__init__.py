"""Offers in a folder of JSON-lines files."""
