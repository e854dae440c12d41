"""Losses and findings of raydr for other trainers."""
