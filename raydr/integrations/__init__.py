"""raydr's losses and findings for other trainers."""
