"""A trial that is a refresh: its rounds run one after the other, and it tells the dev measures after each.

The nodes of all trials lie in one working folder under their keys, so that what trials agree in is made once, be it the
BM25 candidates or whole rounds.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from raydr.config.run import RunConfig
from raydr.graph.declaring import Declaring
from raydr.graph.node import Node, Resources
from raydr.graph.places import Places
from raydr.graph.planning import Inventory
from raydr.graph.refresh_results import best_round, dev_measures, dev_value, finished_rounds, out_of_patience
from raydr.graph.rounds import lay_out
from raydr.graph.session import Session
from raydr.tuning.trial_nodes import declare, make
from raydr.tuning.trial_work import News, in_spite_of_lost_nodes, outside, result_of, wait_for
from raydr.tuning.trials import Row


def follow_refresh(config: RunConfig, capacity: Resources) -> Generator[News, None, None]:
    """Run the rounds of a trial; the next one is begun when the caller comes back.

    Args:
        config: of the trial.
        capacity: what its nodes share, by Ray's names.
    """
    rows: list[Row] = []
    over = False
    while not over:
        row, over = yield from in_spite_of_lost_nodes(partial(_follow_round, config, capacity, len(rows) + 1))
        rows.append(row)
        yield News(rows, finished=over)


def _follow_round(config: RunConfig, capacity: Resources, number: int) -> Generator[News, None, tuple[Row, bool]]:
    with outside(run_round, config, capacity, number) as work:
        yield from wait_for(work, f"round {number}, which is being made")
        found: tuple[Row, bool] = result_of(work)
    return found


def run_round(config: RunConfig, capacity: Resources, number: int) -> tuple[Row, bool]:
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
    metrics = {f"dev {name}": mean for name, mean in dev_measures(inventory, config, done[-1]).items()}
    over = number == len(arm.rounds) or out_of_patience(values, arm.settings.patience)
    return Row(epoch=number, score=max(values), metrics=metrics), over


def best_model(config: RunConfig) -> Node:
    """The model of the best round of a trial that is over."""
    [arm] = lay_out(declare(config))
    inventory = Inventory(Places.of(config.workdir))
    return best_round(inventory, config, arm.settings, finished_rounds(inventory, arm)).model


def refresh_model(session: Session, run: Declaring, seed: int) -> Node:
    """The model of the best round, by dev, of a refresh that is run with a seed; its vectors stay, others go."""
    run = run.of(run.config.model_copy(update={"seed": seed}))
    [arm] = lay_out(run)
    values: list[float] = []
    for one in arm.rounds:
        session.make(*one.targets(), anew=[])
        values.append(dev_value(session.inventory, run.config, arm.settings, one))
        if out_of_patience(values, arm.settings.patience):
            break
    found = best_round(session.inventory, run.config, arm.settings, arm.rounds[: len(values)])
    kept = {node.key for node in found.vectors()}
    session.prune(node for one in arm.rounds for key, node in one.nodes().items() if key not in kept)
    return found.model
