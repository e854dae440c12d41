"""Arms of an experiment: trainings in different ways on the same data and seeds, with the same measurement.

A seed determines the noise, the folds, the order of batches and the initial weights, and on request the queries; the
passages are the same for all seeds. An arm is trained in a single process, so that several arms run at a time. The
model equals that of Ray Train with any number of workers, since the batch is global. An arm is a node of the graph,
artefact ``arm``::

    result.json          :class:`ArmResult`
    margins.npz          :class:`States`, if they are kept
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arm_training import MARGINS, ArmData, ArmOptions, ArmResult, run_arm
from raydr.artefacts import cross_fitting
from raydr.artefacts.context import Context
from raydr.artefacts.dataset import declare_corpus, declare_prepared
from raydr.artefacts.declaration import Node, artefact
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed.pool import Needs, Pool
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.session import Session
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.training.training import Training

RESULT = "result.json"


@dataclass(frozen=True)
class Arm:
    """An arm: a way of training.

    Args:
        name: of the arm.
        context: the run with the arm's training and seed.
        pairs: the data set of the training.
        negatives: candidates of the training split, if it uses hard negatives.
        options: of the arm.
    """

    name: str
    context: Context
    pairs: Node
    negatives: Node | None
    options: ArmOptions = field(default_factory=ArmOptions)

    @property
    def seed(self) -> int:
        return self.context.config.seed

    def node(self) -> Node:
        """Declare the training and test of the arm."""
        config = self.context.config
        # Both states are reported, whichever state the config keeps.
        context = self.context.of(config.model_copy(update={"train": config.train.model_copy(update={"keep": "best"})}))
        training = context.training()
        test = {
            "split": config.data.test_splits[0],
            "measures": config.evaluate.measures,
            "top_k": config.search.top_k,
        }
        return train_arm.node(
            f"arm-{self.name}-{self.seed}",
            dataset=self.pairs,
            corpus=declare_corpus(context),
            negatives=self.negatives,
            margins=cross_fitting.margins_of(context, training),
            training=training,
            checkpoint=context.facts.checkpoint(config.model),
            options=self.options,
            test=test,
            demand={"CPU": 1.0, "GPU": float(config.train.use_gpu)},
        )


def plain_arm(recipe: Recipe, name: str, train: Mapping[str, Any] | None = None, **options: Any) -> Arm:
    """Return an arm that trains a variant, or the config, on the run's data.

    Args:
        recipe: of the run.
        name: of the arm; a variant's name trains the variant.
        train: settings that replace those of the section ``train``.
        options: as in :class:`ArmOptions`.
    """
    config = recipe.config.variant(name)
    config = config.model_copy(update={"train": config.train.model_copy(update=dict(train or {}))})
    mined = recipe.candidates(config.data.train_split) if recipe.config.draws_candidates else None
    return Arm(name, recipe.context.of(config), recipe.dataset(), mined, ArmOptions(**options))


@dataclass(frozen=True)
class States:
    """Margins of all training pairs, before training and after each epoch.

    Args:
        values_EN: a row for each state: before training, after the first epoch, ...
        random_EN: margins of random pairs, one for each query.
        mismatched_N: whether each pair is mismatched.
    """

    values_EN: NDArray[np.float64]
    random_EN: NDArray[np.float64]
    mismatched_N: NDArray[np.bool_]

    @classmethod
    def of(cls, arm: Artifact) -> States:
        """Read the margins of an arm."""
        with np.load(arm.local(MARGINS), allow_pickle=False) as arrays:
            return cls(arrays["values_EN"], arrays["random_EN"], arrays["mismatched_N"])


def seeded_recipes(session: Session, num_seeds: int, redraw: bool = False) -> list[Recipe]:
    """Return the run with ``num_seeds`` seeds, from the config's on.

    Args:
        session: of the run.
        num_seeds: number of seeds.
        redraw: each seed draws the queries of ``data.max_queries`` anew; otherwise all have those of the first.
    """
    first = session.recipe
    shared = [declare_corpus] if redraw else [declare_corpus, declare_prepared]
    prepared = {declare.__name__: declare(first.context) for declare in shared}
    recipes = [first]
    for seed in range(first.config.seed + 1, first.config.seed + num_seeds):
        config = first.config.model_copy(update={"seed": seed})
        recipes.append(Recipe(Context(config, first.context.facts, config, data_nodes=dict(prepared))))
    return recipes


def make_arms(session: Session, arms: Sequence[Arm]) -> dict[tuple[str, int], Artifact]:
    """Make the missing artefacts of arms; return all by name and seed."""
    nodes = {(arm.name, arm.seed): arm.node() for arm in arms}
    for (name, seed), node in nodes.items():
        session.recipe.named(f"arms/{name}-{seed}", node)
    return dict(zip(nodes, session.make(*nodes.values()), strict=True))


def run_arms(session: Session, arms: Sequence[Arm]) -> list[ArmResult]:
    """Return the results of all arms."""
    made = make_arms(session, arms)
    return [ArmResult(name, seed, **arm.folder.read_json(RESULT)) for (name, seed), arm in made.items()]


# The number of rows is large, so that arms run side by side on Ray whatever their size.
@artefact("arm", version=2, rows=lambda settings: 10**9, moves=True)
def train_arm(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None = None,
    margins: Artifact | None = None,
    *,
    training: Training,
    checkpoint: str = "",
    options: ArmOptions,
    test: Mapping[str, Any],
) -> dict[str, Any]:
    """Train and measure an arm."""
    data = ArmData(Dataset(dataset), Corpus(corpus), negatives, margins)
    gpus = float(training.train.use_gpu)
    result: ArmResult = pool.run(run_arm, training, data, options, test, making.folder, needs=Needs(num_gpus=gpus))
    making.folder.write_json(
        RESULT, {key: value for key, value in asdict(result).items() if key not in ("arm", "seed")}
    )
    making.record_files()
    return {"seconds": result.seconds, "best_epoch": result.best_epoch}
