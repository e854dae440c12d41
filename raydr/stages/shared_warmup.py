"""States after epochs of plain NCE, kept for other trainings that begin with the same epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raydr.losses.nce import NCE
from raydr.store.folder import Folder, publish_files
from raydr.training.checkpoint import PROGRESS, Save
from raydr.training.config import TrainConfig


class SharedWarmup:
    """A folder of states that trainings with the same data, model and optimiser look into.

    Args:
        folder: of these trainings; their losses, teachers and detectors may differ.
        config: which epochs of this training are plain NCE, and which of them are kept.
    """

    def __init__(self, folder: Folder, config: TrainConfig) -> None:
        self.folder = folder
        self.warmup_epochs = config.loss.num_warmup_epochs
        asked = [config.share_warmup] if isinstance(config.share_warmup, int) else list(config.share_warmup or ())
        # NCE with a detector detects from the first epoch on, with the untrained model, and its states carry the flags.
        is_plain = isinstance(config.loss, NCE) and config.pair_detection is None
        plain = config.num_epochs if is_plain else self.warmup_epochs
        #: Epochs after which the state is kept.
        self.kept = {epoch for epoch in (*asked, self.warmup_epochs) if 0 < epoch <= plain}

    def num_epochs_there(self) -> int:
        """After how many epochs the furthest state is that this training may begin with; 0 if there is none."""
        return next((epoch for epoch in range(self.warmup_epochs, 0, -1) if self._is_there(epoch)), 0)

    def state(self, epoch: int) -> Path:
        """The state after an epoch, in a local folder."""
        return Path(self._place(epoch).localize_all())

    def keep(self, epoch: int, copy: Callable[[], Save]) -> None:
        """Keep the state after an epoch, if it is one to keep and is not there yet."""
        if epoch in self.kept and not self._is_there(epoch):
            publish_files(self._place(epoch), copy(), last=PROGRESS)

    def _place(self, epoch: int) -> Folder:
        return self.folder / f"epoch-{epoch}"

    def _is_there(self, epoch: int) -> bool:
        return self._place(epoch).exists(PROGRESS)
