"""Looking after a ledger: the doctor, pruning, backups, doubt after a restore."""
