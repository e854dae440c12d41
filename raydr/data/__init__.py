"""Passages and queries: reading, tables, and access to prepared ones."""

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset

__all__ = ["Corpus", "Dataset"]
