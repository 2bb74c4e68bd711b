"""HTTP: one client, its transports, and what a failed call means."""
