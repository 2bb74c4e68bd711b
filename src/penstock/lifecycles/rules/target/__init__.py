"""Rule targets: one variant of a run, with its price before and after."""
