"""Landed data: the sink that keeps it unchanged, and the gate through which it is read."""
