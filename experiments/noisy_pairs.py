"""Training on mismatched pairs (NPC's table 2 on a small scale): NCE, co-teaching, NPC, NCE on filtered or clean pairs.

The arms are the config's own training with NCE (``nce``) and each variant of the config. ``JUDGE-filtered`` is the
config's training on the data that a judge of ``judge.judges`` keeps, ``clean`` that without known mismatched pairs.
With ``--arms``, a variant can also train on the right pairs alone (``VARIANT-clean``). Arms and seeds run side by side;
finished arms are reused.

    python -m experiments.noisy_pairs configs/experiments/flags-code.yaml --seeds 3 --equal-steps --unexamined
    python -m experiments.noisy_pairs configs/experiments/flags-code.yaml --seeds 3 --equal-steps --unexamined \\
        --arms nce,npc,teacher,teacher-clean,clean
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from experiments.arguments import command, load_config, run_parser
from experiments.arm_report import report_arms
from experiments.arms import Arm, plain_arm, run_arms, seeded_recipes
from raydr.artefacts.declaration import Node
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.tables import relevant
from raydr.errors import ConfigError, DataError
from raydr.losses.npc import NPC
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.session import Session, open_session
from raydr.training.batches import steps_per_epoch

BASELINE = "nce"
REFERENCE = "clean"
FILTERED, ON_CLEAN = "-filtered", f"-{REFERENCE}"


def main() -> None:
    parser = run_parser(__doc__, "experiment", seeds=3)
    parser.add_argument("--arms", default="", help="comma-separated; by default all but VARIANT-clean")
    parser.add_argument("--equal-steps", action="store_true", help="arms with fewer pairs train for more epochs")
    help_text = "do not measure the pairs after each epoch, which takes a fifth of an arm's time"
    parser.add_argument("--unexamined", action="store_true", help=help_text)
    parser.add_argument("--redraw", action="store_true", help="each seed draws the pairs of data.max_queries anew")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    names = arm_names(config, arguments.arms)
    with open_session(config) as session:
        arms = []
        for recipe in seeded_recipes(session, arguments.seeds, arguments.redraw):
            for arm in declare_arms(session, recipe, names):
                arm = replace(arm, options=replace(arm.options, examined=not arguments.unexamined))
                arms.append(equal_steps(session, recipe.dataset(), arm) if arguments.equal_steps else arm)
        results = run_arms(session, arms)
    report_arms(config, {"": names}, results, out, references={REFERENCE})


def arm_names(config: RunConfig, chosen: str = "") -> list[str]:
    """Return the arms of a comma-separated list; all arms of the config if it is empty.

    Raises:
        ConfigError: the config has no such arm.
    """
    filtered = [f"{judge.name}{FILTERED}" for judge in config.judge.judges]
    known = [BASELINE, *config.variants, *filtered, REFERENCE]
    names = chosen.split(",") if chosen else known
    on_clean = {f"{variant}{ON_CLEAN}" for variant in config.variants}
    unknown = sorted(set(names) - set(known) - on_clean)
    if unknown:
        raise ConfigError(f"--arms: {unknown[0]!r} is none of {', '.join(known)}, or a variant with {ON_CLEAN}")
    return names


def declare_arms(session: Session, recipe: Recipe, names: Sequence[str]) -> list[Arm]:
    """Declare the arms, after making the data that judges keep.

    Args:
        session: makes these data.
        recipe: of the run.
        names: of the arms.
    """
    arms = []
    for name in names:
        if name in recipe.config.variants:
            arms.append(plain_arm(recipe, name))
        elif name.endswith(FILTERED):
            arms.append(_filtered(session, recipe, plain_arm(recipe, name)))
        else:
            on_clean = name == REFERENCE or name.endswith(ON_CLEAN)
            arm = plain_arm(recipe, name.removesuffix(ON_CLEAN), clean_only=on_clean)
            arms.append(replace(arm, name=name))
    return arms


def equal_steps(session: Session, all_pairs: Node, arm: Arm) -> Arm:
    """Return the arm with about as many optimiser steps, and steps of warm-up, as over all pairs, in whole epochs."""
    config, split = arm.context.config, arm.context.config.data.train_split

    def num_steps(pairs: Node, clean_only: bool) -> int:
        [made] = session.make(pairs)
        judged = relevant(Dataset(made).qrels(split))
        used = judged.filter(pc.is_null(judged["noise"])) if clean_only else judged
        return steps_per_epoch(pc.count_distinct(used["query_id"]).as_py(), config.train.batch_size)

    longer = num_steps(all_pairs, clean_only=False) / num_steps(arm.pairs, arm.options.clean_only)
    train = config.train.model_copy(update={"num_epochs": round(config.train.num_epochs * longer)})
    if isinstance(train.loss, NPC):
        loss = train.loss.model_copy(update={"warmup_epochs": round(train.loss.warmup_epochs * longer)})
        train = train.model_copy(update={"loss": loss})
    return replace(arm, context=arm.context.of(config.model_copy(update={"train": train})))


def _filtered(session: Session, recipe: Recipe, arm: Arm) -> Arm:
    """Return the arm with the pairs, or candidates, that a judge keeps."""
    config, judge = recipe.config, recipe.config.judge.judge(arm.name.removesuffix(FILTERED))
    if judge.subject == "negatives" and arm.negatives is None:
        needed = "set negatives and train.num_hard_negatives"
        raise ConfigError(f"arm {arm.name}: {judge.name} judges hard negatives, {needed}")
    judged = recipe.judged(config.judge.chain(judge), config.data.train_split)
    if judge.subject == "negatives":
        return replace(arm, negatives=judged.negatives)
    assert judged.pairs is not None
    [made] = session.make(judged.pairs)
    before, after = made.info["judgments_before"], made.info["judgments_after"]
    if after < config.train.batch_size:
        # Raised before any arm is trained.
        raise DataError(
            f"arm {arm.name}: {judge.name} leaves {after} of {before} pairs, fewer than train.batch_size "
            f"{config.train.batch_size}: change the judge's settings, or leave the arm out (--arms)"
        )
    return replace(arm, pairs=judged.pairs)


if __name__ == "__main__":
    command(main)
