"""``python -m raydr``."""

from raydr.verbs import main

main()
