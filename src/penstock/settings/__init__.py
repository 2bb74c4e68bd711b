"""`penstock.toml`: typed settings, secrets by reference, and what keeps them out of every text."""
