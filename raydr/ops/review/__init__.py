"""``raydr review``: people look at what judges doubt, on a page of this machine alone, and decide."""
