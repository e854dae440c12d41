"""``python -m raydr``."""

from raydr.verbs.app import main

main()
