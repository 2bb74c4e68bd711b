"""A durable control plane for exchanging data with other people's APIs."""
