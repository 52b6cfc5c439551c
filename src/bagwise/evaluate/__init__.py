"""Metrics, protocols and comparisons that keep preprocessing inside the fold."""
