"""From scores of held-out bags to probabilities: one line for bags, one map for instances."""
