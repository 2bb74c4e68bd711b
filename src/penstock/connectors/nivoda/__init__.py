"""Nivoda: a catalogue over GraphQL."""
