"""A copy of an artefact on another store."""

from __future__ import annotations

import shutil

from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import MANIFEST


def copy_artifact(made: Artifact, target: Folder) -> None:
    """Copy a finished artefact to another folder; the manifest comes last, so that half a copy is none."""
    for name in [*made.parts(), MANIFEST]:
        with target.publish(name) as path:
            shutil.copyfile(made.folder.localize(name), path)
