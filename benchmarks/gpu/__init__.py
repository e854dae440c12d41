"""Benchmarks and tests on a single GPU: see ``__main__``."""
