"""PostgreSQL as the ledger: any number of machines."""
