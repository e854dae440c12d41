"""Artefacts: a file a kind, with what declares its node, the stage that makes it, and the work of its workers."""

from raydr.artefacts.context import Context, encoders, trainers
from raydr.artefacts.declaration import Existing, Node, artefact

__all__ = ["Context", "Existing", "Node", "artefact", "encoders", "trainers"]
