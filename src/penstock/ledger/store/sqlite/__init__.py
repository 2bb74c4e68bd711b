"""SQLite as the ledger: one file, one writer at a time."""
