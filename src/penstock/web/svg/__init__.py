"""Pictures, drawn on the server."""
