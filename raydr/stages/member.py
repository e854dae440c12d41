"""The processes that train together, as what they run sees them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raydr.store.folder import Folder

if TYPE_CHECKING:
    import torch
    from torch import nn


class Member(Protocol):
    """One of the processes that train together, or the only one."""

    rank: int
    num_ranks: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module as a training step calls it."""

    def last_state(self) -> AbstractContextManager[Path | None]:
        """A folder with the last state of this training that was kept, None if there is none."""

    def report(self, metrics: dict[str, Any], save: Callable[[Path], None], wait: bool = True) -> None:
        """Keep the state that ``save`` writes; every member calls it the same number of times.

        Args:
            metrics: ``global_step`` among them, the optimiser's steps so far.
            save: writes into a local folder.
            wait: until the state is kept. Otherwise members go on once it is written on this node.
        """


#: What a member runs, given its job: returns the outcome. An outcome ``{"error": message}`` ends training without
#: another try; whatever is raised makes Ray Train start the group again.
Worker = Callable[[Any, Member], dict[str, Any]]


def checkpoint_folder(output: Folder) -> Folder:
    """Where the checkpoints of an artefact that is being trained lie, given where that goes."""
    return Folder(f"{output.url.rstrip('/')}.training")
