"""Simulators: each speaks the other side of a connector's API, on a clock that a test or a demonstration moves."""
