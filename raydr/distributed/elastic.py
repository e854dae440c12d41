"""Elastic groups on nodes with labels, which Ray Train 2.60 does not regard when it counts the possible workers.

It would start, and resize to, a group that some node without the labels could hold, and wait for it for ever.
"""

from __future__ import annotations

from typing import Any

from ray._private.state import available_resources_per_node
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy

from raydr.distributed.resources import nodes_with


class LabelledScaling(ElasticScalingPolicy):  # type: ignore[misc]
    """Policy that counts the running workers, and those for which nodes with their labels have free resources."""

    num_running = 0

    def make_decision_for_non_running_worker_group(self) -> Any:
        self.num_running = 0
        return super().make_decision_for_non_running_worker_group()

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:
        self.num_running = worker_group_state.num_workers
        return super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        free = available_resources_per_node()
        nodes = [node["NodeID"] for node in nodes_with(self.scaling_config.label_selector)]
        num_more = super()._count_possible_workers({node: free.get(node, {}) for node in nodes})
        return int(min(self.num_running + num_more, self.scaling_config.max_workers))


class LabelledTrainer(TorchTrainer):  # type: ignore[misc]
    """Trainer whose elastic group regards labels."""

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        if self.scaling_config.elasticity_enabled and self.scaling_config.label_selector:
            arguments["scaling_policy"] = LabelledScaling(self.scaling_config)
        return super()._initialize_and_run_controller(**arguments)
