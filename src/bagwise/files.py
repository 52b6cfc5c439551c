"""Feature folders and tables on disk to Bags, lazily; label files."""
