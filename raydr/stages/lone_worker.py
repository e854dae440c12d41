"""A training in one process, without Ray Train: it starts at once and leaves nothing behind.

The result is that of a worker group: the batch is global. The state lies beside the artefact as a group's checkpoints
do, and the same training goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydr.stages.states import has_state, keep_state, local_state
from raydr.store.folder import Folder

if TYPE_CHECKING:
    import torch
    from torch import nn


class LoneMember:
    """The only process of a training; keeps its last state.

    Args:
        states: the folder of its states.
        device: it trains on.
    """

    rank = 0
    num_ranks = 1

    def __init__(self, states: Folder, device: torch.device) -> None:
        self.states = states
        self.device = device

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        whole = [state for name in self._names() if has_state(state := self.states / name)]
        yield local_state(whole[-1]) if whole else None

    def report(self, metrics: dict[str, Any], save: Callable[[Path], None]) -> None:
        keep_state(self.states / f"step-{metrics['global_step']:09d}", save)
        for old in self._names()[:-1]:
            self.states.remove(old)

    def _names(self) -> list[str]:
        """Of the states, whole or not, by step."""
        return sorted({name.split("/")[0] for name in self.states.files()})
