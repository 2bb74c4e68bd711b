"""Provider gates: their rows, their budgets, and what answers mean for them."""
