"""The version of raydr, which artefacts carry."""

__version__ = "0.1.0"
