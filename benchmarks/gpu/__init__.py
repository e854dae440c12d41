"""Everything that runs on a GPU, run and timed on one card: see ``__main__``."""
