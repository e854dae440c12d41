"""Training on mismatched pairs (NPC's table 2 in small): NCE, co-teaching, NPC, NCE on filtered and on clean pairs.

Every variant of the config is an arm, beside plain NCE as the config trains it (``nce``), the same training on what a
judge of ``judge.judges`` leaves (``JUDGE-filtered``), and the same training without the pairs that are known to be
mismatched (``clean``). Arms and seeds run side by side; one that is finished is not run again.

    python -m experiments.noisy_pairs configs/experiments/noisy-code.yaml --seeds 3
    python -m experiments.noisy_pairs configs/experiments/flags-code.yaml --seeds 3 --equal-steps --unexamined
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from experiments.arguments import command, load_config, run_parser
from experiments.arm_report import report_arms
from experiments.arms import Arm, plain_arm, run_arms
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.tables import relevant
from raydr.errors import ConfigError, DataError
from raydr.graph.node import Node
from raydr.graph.recipe import Recipe
from raydr.graph.session import Session, open_session
from raydr.training.batches import steps_per_epoch

BASELINE = "nce"
REFERENCE = "clean"
FILTERED = "-filtered"


def main() -> None:
    parser = run_parser(__doc__, "experiment", seeds=3)
    parser.add_argument("--arms", default="", help="comma-separated; all if left out")
    parser.add_argument("--equal-steps", action="store_true", help="arms with fewer pairs train for more epochs")
    told = "pairs are not measured after each epoch, which takes a fifth of an arm's time"
    parser.add_argument("--unexamined", action="store_true", help=told)
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    names = arm_names(config, arguments.arms)
    with open_session(config) as session:
        arms = declare_arms(session, session.recipe, names)
        arms = [replace(arm, options=replace(arm.options, examined=not arguments.unexamined)) for arm in arms]
        arms = [equal_steps(session, arm) for arm in arms] if arguments.equal_steps else arms
        results = run_arms(session, arms, arguments.seeds)
    report_arms(config, {"": names}, results, out, references={REFERENCE})


def arm_names(config: RunConfig, asked: str = "") -> list[str]:
    """All arms of a config, or those asked for.

    Raises:
        ConfigError: one that was asked for is none of them.
    """
    filtered = [f"{judge.name}{FILTERED}" for judge in config.judge.judges]
    known = [BASELINE, *config.variants, *filtered, REFERENCE]
    names = asked.split(",") if asked else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(f"--arms: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def declare_arms(session: Session, recipe: Recipe, names: Sequence[str]) -> list[Arm]:
    """The arms with their data; what judges leave of it is made here.

    Args:
        session: that makes it.
        recipe: of the run whose arms these are.
        names: of the arms.
    """
    arms = []
    for name in names:
        arm = plain_arm(recipe, name, clean_only=name == REFERENCE)
        arms.append(_filtered(session, recipe, arm) if name.endswith(FILTERED) else arm)
    return arms


def equal_steps(session: Session, arm: Arm) -> Arm:
    """The arm with as many optimiser steps as the config's epochs over all pairs take, about: in whole epochs."""
    config, split = arm.run.config, arm.run.config.data.train_split

    def num_steps(pairs: Node, clean_only: bool) -> int:
        [made] = session.make(pairs)
        judged = relevant(Dataset(made).qrels(split))
        used = judged.filter(pc.is_null(judged["noise"])) if clean_only else judged
        return steps_per_epoch(pc.count_distinct(used["query_id"]).as_py(), config.train.batch_size)

    longer = num_steps(session.recipe.dataset(), clean_only=False) / num_steps(arm.pairs, arm.options.clean_only)
    train = config.train.model_copy(update={"num_epochs": round(config.train.num_epochs * longer)})
    return replace(arm, run=arm.run.of(config.model_copy(update={"train": train})))


def _filtered(session: Session, recipe: Recipe, arm: Arm) -> Arm:
    """The config's own training on what a judge leaves of the pairs, or of the candidates."""
    config, judge = recipe.config, recipe.config.judge.judge(arm.name.removesuffix(FILTERED))
    if judge.subject == "negatives":
        if arm.negatives is None:
            told = f"{judge.name} judges hard negatives, set negatives and train.num_hard_negatives"
            raise ConfigError(f"arm {arm.name}: {told}")
        return replace(arm, negatives=recipe.judged(config.judge.chain(judge), config.data.train_split).negatives)
    node = recipe.judged(config.judge.chain(judge), config.data.train_split).pairs
    assert node is not None
    [judged] = session.make(node)
    before, after = judged.info["judgments_before"], judged.info["judgments_after"]
    if after < config.train.batch_size:
        # Said before any arm is trained, and not by this one in the end.
        raise DataError(
            f"arm {arm.name}: {judge.name} leaves {after} of {before} pairs, fewer than train.batch_size "
            f"{config.train.batch_size}: change the judge's settings, or leave the arm out (--arms)"
        )
    return replace(arm, pairs=node)


if __name__ == "__main__":
    command(main)
