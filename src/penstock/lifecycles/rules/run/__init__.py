"""Rule runs: one execution of a rule, or the rollback of one, from its preview to its end."""
