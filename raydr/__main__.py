"""``python -m raydr``."""

from raydr.cli import main

main()
