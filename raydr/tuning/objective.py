"""What the trials of a search do: each trains its config, or runs the rounds of its refresh."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import RaydrError
from raydr.graph.node import Node
from raydr.graph.places import WARMUPS, Places
from raydr.stages.train import warmup_folder
from raydr.store.folder import Folder
from raydr.tuning.plan import TunePlan
from raydr.tuning.refresh import follow_refresh
from raydr.tuning.resources import Shares
from raydr.tuning.training import follow_training
from raydr.tuning.trial_config import with_values
from raydr.tuning.trial_nodes import VECTORS, nodes_of, remove_nodes, trained
from raydr.tuning.trial_work import News


@dataclass(frozen=True)
class Objective:
    """Goes to the trials' processes, so it holds settings and no data.

    Args:
        config: of the default trial.
        refreshes: trials are refreshes.
        shares: of the resources.
        inputs: a :class:`raydr.tuning.training.InputMaker` while trainings run.
    """

    config: RunConfig
    refreshes: bool
    shares: Shares
    inputs: Any = None

    def run(self, values: Mapping[str, Any], place: Folder) -> Generator[News, None, None]:
        """Do what one trial does, or go on with it; what works is ended when the generator is closed.

        Runs in a process that has no CPU of its own: whatever works asks Ray for what it needs.

        Args:
            values: of the trial, by dotted key.
            place: the trial's folder.
        """
        config = with_values(self.config, values)
        if self.refreshes:
            return follow_refresh(config, self.shares.each)
        return follow_training(config, place, self.inputs)

    def forget(self, ended: Mapping[str, Any], kept: Iterable[Mapping[str, Any]], search_is_over: bool = False) -> None:
        """Remove what a trial has made and no other trial reads; called where the search runs.

        Models of rounds stay for trials to come, as warm-ups do, until the search is over.

        Args:
            ended: values of the trial.
            kept: values of those that are not over, and of the best so far.
            search_is_over: no trial is to come.
        """
        places, own = Places.of(self.config.workdir), self._own(ended)
        kinds = VECTORS if self.refreshes and not search_is_over else (*VECTORS, "model")
        remove_nodes(places, own, [node for values in kept for node in self._own(values)], kinds)
        for node in own if search_is_over and not self.refreshes else []:
            warmup_folder(places.root / WARMUPS, node.identity).remove()

    def _own(self, values: Mapping[str, Any]) -> list[Node]:
        """What a trial makes itself: what a training reads may belong to a verb."""
        try:
            config = with_values(self.config, values)
            return list(nodes_of(config, refreshes=True).values()) if self.refreshes else [trained(config)]
        except RaydrError:
            # Such a trial has failed, and said why; it has made nothing.
            return []


def trial_config(plan: TunePlan, config: RunConfig, dtype: str) -> RunConfig:
    """A config of the space as trials have it: one arithmetic for all, shared warm-ups, and dev alone is looked at."""
    longest, split = plan.schedule.longest_warmup, config.data.dev_split
    warmups = None if plan.refreshes else tuple(range(1, longest + 1)) or None
    train = config.train.model_copy(update={"dtype": dtype, "share_warmup": warmups})
    refresh = config.refresh.model_copy(update={"evaluate_splits": [split]})
    return config.model_copy(update={"train": train, "refresh": refresh})
