"""raydr: distributed training and evaluation of noise-robust dense retrievers on Ray."""

__version__ = "0.1.0"
