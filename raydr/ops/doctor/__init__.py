"""The checks of ``raydr doctor``: software, machine, and the services that a run needs."""
