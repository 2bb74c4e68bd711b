"""The desk: pages on the application of the API."""
