"""Feature extractors trained on bag labels; needs the torch extra."""
