"""The port to a database, and its two sides."""
