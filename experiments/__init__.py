"""Experiments: each is a command that prints tables, draws figures, and writes its results as JSON."""
