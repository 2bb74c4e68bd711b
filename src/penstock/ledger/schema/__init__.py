"""What a ledger is made of: tables, columns, triggers, views, migrations."""
