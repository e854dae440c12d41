"""Elastic groups of Ray Train: which nodes count for their size, and when they are resized.

Ray Train 2.60 counts nodes without the labels of the group too, so that it would start a group that waits for ever. It
resizes a group at any step, which loses the steps since the last state.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ray._private.state import available_resources_per_node
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ResizeDecision

from raydr.distributed.resources import nodes_with
from raydr.store.folder import Folder
from raydr.training.checkpoint import whole_states


class GroupSize(ElasticScalingPolicy):  # type: ignore[misc]
    """Policy that counts nodes with the group's labels alone, and resizes a group when it has kept a state.

    Args:
        scaling_config: workers of the group, their resources and labels.
        states: folder of the states.
    """

    def __init__(self, scaling_config: ScalingConfig, states: Folder) -> None:
        super().__init__(scaling_config)
        self.states, self.num_running = states, 0
        #: Last state at the time from which another size is wanted; None while the size is right.
        self.wanted_since: list[str] | None = None

    def make_decision_for_non_running_worker_group(self) -> Any:
        self.num_running, self.wanted_since = 0, None
        return super().make_decision_for_non_running_worker_group()

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:
        self.num_running = worker_group_state.num_workers
        is_wanted = self.wanted_since is not None
        if is_wanted:
            if self._last_state() == self.wanted_since:
                return NoopDecision()
            # The nodes are counted again at once, not a minute after the last time.
            self._latest_monitor_time = float("-inf")
        decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
        if is_wanted or not isinstance(decision, ResizeDecision):
            self.wanted_since = None
            return decision
        self.wanted_since = self._last_state()
        return NoopDecision()

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        labels = self.scaling_config.label_selector
        if not labels:
            return int(super()._count_possible_workers(reserved_resources))
        free = available_resources_per_node()
        num_more = super()._count_possible_workers(
            {node["NodeID"]: free.get(node["NodeID"], {}) for node in nodes_with(labels)}
        )
        return int(min(self.num_running + num_more, self.scaling_config.max_workers))

    def _last_state(self) -> list[str] | None:
        try:
            return whole_states(self.states)[-1:]
        except OSError:
            # The store does not answer: nothing changes until it does.
            return self.wanted_since


class GroupTrainer(TorchTrainer):  # type: ignore[misc]
    """Trainer whose elastic group has the size of its policy; the settings of its loop name the ``states``."""

    policy: ClassVar = GroupSize

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        if self.scaling_config.elasticity_enabled:
            arguments["scaling_policy"] = self.policy(self.scaling_config, self.train_loop_config["states"])
        return super()._initialize_and_run_controller(**arguments)
