"""Sinks: where changes of alerts are told. Each speaks one protocol, and raises as a connector does."""
