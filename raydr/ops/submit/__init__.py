"""``raydr submit``: run a verb on a Ray cluster as a job, and follow it."""
