"""Arms of an experiment: the same data and seed, trained in different ways, measured in the same way.

A seed draws the noise, the folds, the order of batches and the initial weights; queries and passages are the same for
all seeds. An arm is trained in one process, so that several run at a time: the model is the one that Ray Train would
give with any number of workers, since the batch is global. It is a node of the graph, artefact ``arm``::

    result.json          :class:`ArmResult`
    margins.npz          :class:`States`, if these are kept
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
    """One way of training.

    Args:
        name: of the arm.
        context: the run with the arm's training, and its seed.
        pairs: the data set that it trains on.
        negatives: candidates of the training split, if it uses hard negatives.
        options: what it does besides.
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
        """Its training, test and result."""
        config = self.context.config
        # Both states are reported, whichever the config would keep.
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
    """The training of a variant, or that of the config, on the run's data.

    Args:
        recipe: of the run.
        name: of the arm; the variant's, if there is one.
        train: settings of the section that are replaced.
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
        values_EN: one row a state: before training, after the first epoch, ...
        random_EN: of random pairs, one a query.
        mismatched_N: the truth.
    """

    values_EN: NDArray[np.float64]
    random_EN: NDArray[np.float64]
    mismatched_N: NDArray[np.bool_]

    @classmethod
    def of(cls, arm: Artifact) -> States:
        """What an arm has kept."""
        with np.load(arm.local(MARGINS), allow_pickle=False) as arrays:
            return cls(arrays["values_EN"], arrays["random_EN"], arrays["mismatched_N"])


def seeded_recipes(session: Session, num_seeds: int) -> list[Recipe]:
    """The run with so many seeds, from the config's on; all have the queries and judgments of the first."""
    first = session.recipe
    prepared = {declare.__name__: declare(first.context) for declare in (declare_corpus, declare_prepared)}
    recipes = [first]
    for seed in range(first.config.seed + 1, first.config.seed + num_seeds):
        config = first.config.model_copy(update={"seed": seed})
        recipes.append(Recipe(Context(config, first.context.facts, config, data_nodes=dict(prepared))))
    return recipes


def make_arms(session: Session, arms: Sequence[Arm]) -> dict[tuple[str, int], Artifact]:
    """The artefacts of all arms, by name and seed; what is there is not made again."""
    nodes = {(arm.name, arm.seed): arm.node() for arm in arms}
    for (name, seed), node in nodes.items():
        session.recipe.named(f"arms/{name}-{seed}", node)
    return dict(zip(nodes, session.make(*nodes.values()), strict=True))


def run_arms(session: Session, arms: Sequence[Arm]) -> list[ArmResult]:
    """What all arms come to."""
    made = make_arms(session, arms)
    return [ArmResult(name, seed, **arm.folder.read_json(RESULT)) for (name, seed), arm in made.items()]


# On Ray several run side by side, whatever their size.
@artefact("arm", version=2, rows=lambda of: 10**9, moves=True)
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
    """Train and measure one arm; the stage of the node."""
    data = ArmData(Dataset(dataset), Corpus(corpus), negatives, margins)
    gpus = float(training.train.use_gpu)
    result: ArmResult = pool.run(run_arm, training, data, options, test, making.folder, needs=Needs(num_gpus=gpus))
    making.folder.write_json(
        RESULT, {key: value for key, value in asdict(result).items() if key not in ("arm", "seed")}
    )
    making.record_files()
    return {"seconds": result.seconds, "best_epoch": result.best_epoch}
