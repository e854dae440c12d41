"""Folders on any filesystem, and artefacts in them."""

from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder
from raydr.store.identity import Identity, Manifest, Part

__all__ = ["Artifact", "Building", "Folder", "Identity", "Manifest", "Part"]
