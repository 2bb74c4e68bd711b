"""Alerts: policies as data, one unit for each policy and subject, and who is told of its changes."""
