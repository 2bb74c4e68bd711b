"""Any JSON API that the configuration describes."""
