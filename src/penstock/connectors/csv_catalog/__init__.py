"""A price list in a CSV file, in place of a provider."""
