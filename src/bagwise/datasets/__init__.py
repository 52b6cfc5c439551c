"""Data sets: bundled, fetched into a data home, and generated with known truth."""
