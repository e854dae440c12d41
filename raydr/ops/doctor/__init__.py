"""What ``raydr doctor`` looks at: software, machine, and the services that a run needs."""
