"""The search over refreshes: a trial runs its rounds one after the other, and tells the dev measures after each.

The nodes of all trials lie in one working folder under their keys, so that what trials agree in is made once, be it the
BM25 candidates or whole rounds.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.declaring import Declaring
from raydr.graph.node import Node
from raydr.graph.places import Places
from raydr.graph.planning import Inventory
from raydr.graph.refresh_results import best_round, dev_measures, dev_value, out_of_patience
from raydr.graph.rounds import Round, lay_out
from raydr.graph.session import Session
from raydr.stages.failures import worker_errors
from raydr.store.folder import Folder
from raydr.tuning.objective import News
from raydr.tuning.plan import TunePlan
from raydr.tuning.resources import Shares
from raydr.tuning.trial import outside
from raydr.tuning.trial_config import with_values
from raydr.tuning.trial_nodes import declare, forget, make, nodes_of
from raydr.tuning.trials import Row


@dataclass(frozen=True)
class RefreshObjective:
    """See :class:`raydr.tuning.objective.Objective`.

    Args:
        config: of the default trial.
        shares: of the resources.
    """

    config: RunConfig
    shares: Shares

    def run(self, values: Mapping[str, Any], place: Folder) -> Generator[News, None, None]:
        config, rows = with_values(self.config, values), list[Row]()
        for number in range(1, config.refresh.num_rounds + 1):
            with outside(run_round, config, dict(self.shares.each), number) as work, worker_errors():
                row, over = ray.get(work)
            rows.append(row)
            yield News(rows, finished=over)
            if over:
                return

    def forget(self, ended: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> None:
        others = [node for values in kept for node in self._nodes(values)]
        forget(Places.of(self.config.workdir), self._nodes(ended), others)

    def _nodes(self, values: Mapping[str, Any]) -> list[Node]:
        return list(nodes_of(with_values(self.config, values), refreshes=True).values())


def run_round(config: RunConfig, capacity: dict[str, float], number: int) -> tuple[Row, bool]:
    """Run the rounds of a refresh up to one, as far as they are not done.

    Args:
        config: of the trial.
        capacity: what the nodes share, by Ray's names.
        number: of the last round to run, from 1.

    Returns:
        The round's row, with the best score so far, and whether the refresh is over.
    """
    [arm] = lay_out(declare(config))
    done = arm.rounds[:number]
    inventory = make(config, [target for one in done for target in one.targets()], capacity=capacity)
    values = [dev_value(inventory, config, arm.settings, one) for one in done]
    over = number == len(arm.rounds) or out_of_patience(values, arm.settings.patience)
    measures = dev_measures(inventory, config, done[-1])
    metrics = {f"dev {name}": mean for name, mean in measures.items()}
    return Row(epoch=number, score=max(values), metrics=metrics), over


def best_of(session: Session, run: Declaring) -> Round:
    """The best round of a refresh by dev; the rounds are made one by one until patience is over."""
    [arm] = lay_out(run)
    values: list[float] = []
    for one in arm.rounds:
        session.make(*one.targets(), anew=[])
        values.append(dev_value(session.inventory, run.config, arm.settings, one))
        if out_of_patience(values, arm.settings.patience):
            break
    return best_round(session.inventory, run.config, arm.settings, arm.rounds[: len(values)])


def refresh_model(session: Session, run: Declaring, seed: int) -> Node:
    """The model of the best round of a refresh that is run with a seed."""
    config = run.config.model_copy(update={"seed": seed})
    found = best_of(session, run.of(config))
    kept = {node.key for node in found.vectors()}
    [arm] = lay_out(run.of(config))
    session.prune(node for one in arm.rounds for key, node in one.nodes().items() if key not in kept)
    return found.model


def best_model(config: RunConfig) -> Node:
    """The model of the best round of a trial that is over."""
    [arm] = lay_out(declare(config))
    inventory = Inventory(Places.of(config.workdir))
    done = [one for one in arm.rounds if all(inventory.state(node) == "done" for node in one.evaluations.values())]
    return best_round(inventory, config, arm.settings, done).model


def measured_on_dev(config: RunConfig, dtype: str) -> RunConfig:
    """The config of a trial: one arithmetic for all, and nothing is evaluated but dev."""
    train = config.train.model_copy(update={"dtype": dtype})
    refresh = config.refresh.model_copy(update={"evaluate_splits": [config.data.dev_split]})
    return config.model_copy(update={"train": train, "refresh": refresh})


def check_shards(plan: TunePlan, num_passages: int, shares: Shares) -> None:
    """Refuse trials that could wait for each other's search actors.

    Raises:
        ConfigError: several trials run at a time, and an index has several shards.
    """
    num_shards = -(-num_passages // plan.space.config.index.shard_rows)
    if num_shards > 1 and shares.concurrency > 1:
        raise ConfigError(
            f"trials.concurrency is {shares.concurrency}, and an index of {num_passages:,} passages has {num_shards} "
            "shards: two trials that search at a time could each hold some of the actors that the other waits for. Run "
            "one at a time, or make index.shard_rows larger"
        )
