"""Experiments: one command each, which prints a table, draws it, and writes what it found as JSON."""
