"""A chunk: a range of a run's raw rows, consolidated in one transaction."""
