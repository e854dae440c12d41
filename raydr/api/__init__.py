"""Python API: pairs in memory in, tables and models out. ``import raydr`` exports it."""
