"""Sending a verb to a Ray cluster as a job, and following it there."""
