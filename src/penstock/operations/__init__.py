"""What people read of a ledger and do to it, declared once for every surface."""
