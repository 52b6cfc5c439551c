"""The estimators. Families never import each other; they share `base` and `core`."""
