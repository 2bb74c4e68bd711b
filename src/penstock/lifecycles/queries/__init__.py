"""Queries: recurring searches, one at a time, seeded backwards through history."""
