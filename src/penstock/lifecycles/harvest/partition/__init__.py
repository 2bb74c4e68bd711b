"""A partition: a range of a run's catalogue, fetched page by page."""
