"""Faults made on purpose, and what they cost: `python -m chaos.run`, which keeps docs/reliability.md.

Nothing here is shared with the tests. The lifecycle, the provider, the proxy, the database server and every check in
SQL are of their own, so that a mistake in the tests' helpers cannot hide a mistake in the kernel.
"""
