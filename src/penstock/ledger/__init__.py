"""The ledger: one database that holds every unit, enforces its machine and keeps its history."""
