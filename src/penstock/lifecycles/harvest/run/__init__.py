"""A run: one pass over a catalogue, from its scan to the watermark."""
