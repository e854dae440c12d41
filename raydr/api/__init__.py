"""raydr from Python: pairs in memory in, tables and models out. ``import raydr`` gives all of it."""
