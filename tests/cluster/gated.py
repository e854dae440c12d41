"""A stub encoder that leaves a mark for each node it runs on, and waits where a test wants it to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from raydr.models.tokens import Tokens
from tests.artefacts.stub import StubEncoder
from tests.patience import wait_until

ENCODER = "tests.cluster.gated:GatedEncoder"


def wait_for_files(place: Path, glob: str, count: int, whom: str) -> None:
    """Wait until there are ``count`` files."""
    wait_until(lambda: len(list(place.glob(glob))) >= count, f"{whom} finds {count} of {glob} in {place}", look_s=0.02)


class GatedEncoder(StubEncoder):
    """Obeys files in the folder of the model.

    ``min-nodes``: a number; no part after its first is encoded before encoders run on so many nodes.
    ``doomed``: a node; an encoder on it stops in its second part, until it is killed.

    It leaves ``part-NODE-PROCESS-NUMBER`` when it starts its NUMBERth part.
    """

    def __init__(self, *job: Any, **settings: Any) -> None:
        super().__init__(*job, **settings)
        self.node = ray.get_runtime_context().get_node_id()
        self.parts = 0

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        (self.model / f"part-{self.node}-{os.getpid()}-{self.parts}").touch()
        self.parts += 1
        if self.parts > 1 and self._order("doomed") == self.node:
            wait_for_files(self.model, "never", 1, "the encoder on the doomed node")
        if self.parts > 1 and (fewest := self._order("min-nodes")):
            wait_for_files(self.model, "part-*-*-0", int(fewest), "an encoder")
        return super().encode(tokens)

    def _order(self, name: str) -> str:
        order = self.model / name
        return order.read_text() if order.exists() else ""
