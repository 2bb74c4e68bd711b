"""The runtime: flows, the worker that steps their units, and the ports it waits through."""
