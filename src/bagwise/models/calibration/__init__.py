"""From scores of held-out bags to probabilities: functions, their fit, models that have them."""
