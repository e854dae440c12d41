"""Passages and queries: readers, writers, tables, and access to prepared data."""

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset

__all__ = ["Corpus", "Dataset"]
