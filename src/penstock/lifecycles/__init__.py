"""The lifecycles that Penstock brings: a machine, a decision and a flow each."""
