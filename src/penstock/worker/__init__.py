"""The worker: it claims due units, steps them through their flows, and commits."""
