"""Arrays in, arrays out: the mathematics every model shares. Never Bags, never estimators."""
