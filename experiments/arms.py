"""Arms of an experiment: the same data and seed, trained in different ways, measured in the same way.

An arm is trained in one process, so that several run at a time: the model is the one that Ray Train would give with any
number of workers, since the batch is global. With each seed it is a node of the graph, artefact ``arm``::

    result.json          :class:`ArmResult`
    model/               its last state, if that is kept
    perplexities.npz     :class:`States`, if these are kept
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arm_training import PERPLEXITIES, ArmData, ArmOptions, ArmResult, run_arm
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.declaring import Declaring
from raydr.graph.node import Node, stage
from raydr.graph.nodes import cross_fitting
from raydr.graph.nodes import data as data_nodes
from raydr.graph.nodes.training import training_of, training_settings
from raydr.graph.recipe import Recipe
from raydr.graph.session import Session
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building
from raydr.training.training import Training

#: Raised when an arm comes to something else with the same settings.
VERSION = 1
RESULT = "result.json"


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Args:
        name: of the arm.
        run: the run with the arm's training.
        pairs: the data set that it trains on.
        negatives: candidates of the training split, if it uses hard negatives.
        options: what it does besides.
        states: token states that stand for an encoder; what is trained is then done in this process.
    """

    name: str
    run: Declaring
    pairs: Node
    negatives: Node | None
    options: ArmOptions = field(default_factory=ArmOptions)
    states: Node | None = None

    def node(self, seed: int) -> Node:
        """The arm with one seed; the data are the same for all seeds."""
        config = self.run.config
        # Both states are reported, whichever the config would keep.
        run = self.run.of(config.model_copy(update={"train": config.train.model_copy(update={"keep": "best"})}))
        training = training_of(run).model_copy(update={"seed": seed})
        test = {
            "split": config.data.test_splits[0],
            "measures": config.evaluate.measures,
            "top_k": config.search.top_k,
        }
        inputs = {"dataset": self.pairs, "corpus": data_nodes.corpus(run)}
        margins = cross_fitting.margins_of(run, training)
        given = {"negatives": self.negatives, cross_fitting.MARGINS: margins, "states": self.states}
        # On Ray several run side by side, whatever their size.
        num_rows = 10**9 if self.states is None else 0
        return Node(
            "arm",
            f"arm-{self.name}-{seed}",
            stage(
                partial(train_arm, training=training, options=self.options, test=test),
                *("dataset", "corpus", "negatives", cross_fitting.MARGINS, "states"),
            ),
            training_settings(training)
            | {"checkpoint": run.facts.checkpoint(config.model), "options": asdict(self.options), "test": test},
            inputs | {role: node for role, node in given.items() if node is not None},
            VERSION,
            num_rows=lambda inputs: num_rows,
            demand={"CPU": 1.0, "GPU": float(config.train.use_gpu)},
            moves=True,
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
    return Arm(name, recipe.run.of(config), recipe.dataset(), mined, ArmOptions(**options))


@dataclass(frozen=True)
class States:
    """Perplexities of all training pairs, before training and after each epoch.

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
        with np.load(arm.local(PERPLEXITIES), allow_pickle=False) as arrays:
            return cls(arrays["values_EN"], arrays["random_EN"], arrays["mismatched_N"])


def make_arms(session: Session, arms: Sequence[Arm], seeds: Sequence[int]) -> dict[tuple[str, int], Artifact]:
    """The artefacts of all arms with all seeds, by name and seed; what is there is not made again."""
    nodes = {(arm.name, seed): arm.node(seed) for seed in seeds for arm in arms}
    for (name, seed), node in nodes.items():
        session.recipe.named(f"arms/{name}-{seed}", node)
    return dict(zip(nodes, session.make(*nodes.values()), strict=True))


def run_arms(session: Session, arms: Sequence[Arm], num_seeds: int) -> list[ArmResult]:
    """What all arms come to, with so many seeds from the config's on."""
    seeds = range(session.config.seed, session.config.seed + num_seeds)
    made = make_arms(session, arms, seeds)
    return [ArmResult(name, seed, **one.folder.read_json(RESULT)) for (name, seed), one in made.items()]


def train_arm(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None,
    margins: Artifact | None,
    states: Artifact | None,
    *,
    training: Training,
    options: ArmOptions,
    test: Mapping[str, Any],
) -> dict[str, Any]:
    """Train and measure one arm; the stage of the node."""
    data = ArmData(Dataset(dataset), Corpus(corpus), negatives, margins, states)
    gpus = float(training.train.use_gpu)
    result: ArmResult = pool.run(run_arm, training, data, options, test, making.folder, num_gpus=gpus)
    making.folder.write_json(RESULT, {key: one for key, one in asdict(result).items() if key not in ("arm", "seed")})
    making.record_files()
    return {"seconds": result.seconds, "best_epoch": result.best_epoch}
