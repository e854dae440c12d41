"""Score functions and negatives for entity linking, by heads on frozen token states (Zhang and Stratos, table 1).

All token states are computed once. For each score function, with random, hard and half hard negatives, a projection a
side is trained, and codes where it has them. Before every epoch all mentions are scored against all entities of their
worlds, and hard negatives are drawn from the model's own distribution over them. Of each arm the learning rate that is
best on dev with the first seed is trained with the others.

    python -m experiments.linking_by_heads configs/experiments/linking.yaml --seeds 3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_report import compare_arms, report_arms
from experiments.arm_training import ArmOptions, ArmResult
from experiments.arms import Arm, run_arms
from experiments.results import Table
from experiments.token_states import make_states
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.evaluation.linking import MACRO_ACCURACY, accuracies
from raydr.evaluation.metrics import label
from raydr.graph.declaring import Declaring
from raydr.graph.node import Node, stage
from raydr.graph.nodes import data
from raydr.graph.session import open_session
from raydr.models.config import ModelConfig
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.softmax import Softmax
from raydr.pages.figure import COLORS, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What each score function changes of the section model: cosines of codes want a sharper softmax, sums a smaller scale.
SCORES: dict[str, dict[str, Any]] = {
    "dual": {"score": "dual", "scale": 20},
    # One code: a dual encoder that learns where to look in the sentence, as the mean of frozen states cannot.
    "poly-1": {"score": {"name": "poly", "num_vectors": 1}, "scale": 20},
    "poly-16": {"score": {"name": "poly", "num_vectors": 16, "sharpness": 10}, "scale": 20},
    "multi-8": {"score": {"name": "multi", "num_vectors": 8, "vectors": "codes"}, "scale": 20},
    "sum-of-max": {"score": "sum_of_max", "scale": 2},
}
#: Shares of random negatives.
SHARES = {"random": 1.0, "hard": 0.0, "mixed-50": 0.5}
WIDTH = 128
#: Deeper than any world.
DEPTH = 10**9
ACCURACY = label("R@1")


def main() -> None:
    parser = run_parser(__doc__, "linking-by-heads", seeds=3)
    parser.add_argument("--scores", default=",".join(SCORES), help="comma-separated; all if left out")
    parser.add_argument("--rates", type=numbers(float, 1e-6, 1.0), default=[3e-4, 1e-3, 3e-3], help="learning rates")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    names = arguments.scores.split(",")
    if unknown := sorted(set(names) - set(SCORES)):
        parser.error(f"--scores: {unknown[0]!r} is none of {', '.join(SCORES)}")
    config, out = load_config(parser, arguments)
    with open_session(config) as session:
        run = session.recipe.run
        pairs, states = session.recipe.dataset(), states_of(run)
        made = {
            (score, kind, rate): arm_of(run, pairs, states, score, kind, rate, arguments.epochs)
            for score in names
            for kind in SHARES
            for rate in arguments.rates
        }
        tried = {result.arm: result for result in run_arms(session, list(made.values()), 1)}
        best, grid = choose(made, tried)
        results = run_arms(session, list(best.values()), arguments.seeds)
        [dataset] = session.make(pairs)
    results = [named(result, {arm.name: name for name, arm in best.items()}) for result in results]
    queries = Dataset(dataset).queries(config.data.test_splits[0])
    worlds = dict(zip(queries["query_id"].to_pylist(), queries["partition"].fill_null("").to_pylist(), strict=True))
    add_macro(results, worlds)
    groups = {score: [f"{score} {kind}" for kind in SHARES] for score in names}
    if len(names) > 1:
        groups |= {f"{kind} negatives": [f"{score} {kind}" for score in names] for kind in SHARES}
    bars = {"accuracy.png": picture(config, names, results)}
    report_arms(config, groups, results, out, more=[grid], pictures=bars)


def states_of(run: Declaring) -> Node:
    """The states of all passages, and of the queries of all splits that are read."""
    config = run.config
    reads = {"num_layers", "query", "passage", "title", "title_separator"}
    splits = [config.data.train_split, config.data.dev_split, config.data.test_splits[0]]
    return Node(
        "states",
        "token-states",
        stage(partial(make_states, model=config.model, splits=splits), "dataset", "corpus"),
        {
            "checkpoint": run.facts.checkpoint(config.model),
            "model": config.model.model_dump(mode="json", include=reads),
            "splits": splits,
        },
        {"dataset": data.prepared(run), "corpus": data.corpus(run)},
    )


def arm_of(run: Declaring, pairs: Node, states: Node, score: str, kind: str, rate: float, num_epochs: int) -> Arm:
    """The heads of a score function, trained with one kind of negatives at one rate."""
    config = run.config
    model = ModelConfig.model_validate({**dict(config.model), **SCORES[score], "towers": "two", "projection": WIDTH})
    train = config.train.model_copy(
        update={
            "num_epochs": num_epochs,
            # Candidates carry logits, so that this is the model's own distribution.
            "sampler": Mixed(random_share=SHARES[kind], hard=Softmax(smoothing=1)),
            "optimizer": config.train.optimizer.model_copy(update={"learning_rate": rate}),
        }
    )
    changed = run.of(config.model_copy(update={"model": model, "train": train}))
    # Without hard ones nothing has to be scored before an epoch.
    options = ArmOptions(redraw_depth=DEPTH if SHARES[kind] < 1 else 0, examined=False)
    return Arm(f"{score}-{kind}-{rate:g}", changed, pairs, None, options, states)


def choose(made: Mapping[tuple[str, str, float], Arm], tried: Mapping[str, ArmResult]) -> tuple[dict[str, Arm], Table]:
    """The arm of the best rate of each score function and kind of negatives, and what dev said of all."""
    best: dict[str, Arm] = {}
    values: dict[str, dict[float, float]] = {}
    for (score, kind, rate), arm in made.items():
        found = values.setdefault(f"{score} {kind}", {})
        found[rate] = dev_values(tried[arm.name]).max()
        if found[rate] == max(found.values()):
            best[f"{score} {kind}"] = arm
    rates = sorted({rate for _, _, rate in made})
    rows = [[name, *(f"{found[rate]:.3f}" for rate in rates)] for name, found in values.items()]
    return best, Table("Best epoch on dev by learning rate, first seed", ["arm", *map("{:g}".format, rates)], rows)


def dev_values(result: ArmResult) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The dev measure after each epoch."""
    return np.array([next(value for key, value in row.items() if key.startswith("dev ")) for row in result.history])


def named(result: ArmResult, names: Mapping[str, str]) -> ArmResult:
    """The result under the name that it is reported by."""
    return ArmResult(**{**vars(result), "arm": names[result.arm]})


def add_macro(results: Sequence[ArmResult], worlds: Mapping[str, str]) -> None:
    """Accuracy as the unweighted mean over worlds, beside the others."""
    for result in results:
        for values in result.values.values():
            values[MACRO_ACCURACY] = accuracies(values[ACCURACY], worlds)[MACRO_ACCURACY]


def picture(config: RunConfig, scores: Sequence[str], results: Sequence[ArmResult]) -> bytes:
    """Accuracy of each score function by kind of negatives, with intervals over mentions."""
    found = compare_arms(config, [f"{score} {kind}" for score in scores for kind in SHARES], results, "best")
    of = {one.system: one for one in found.summaries if one.measure == ACCURACY}

    def draw(axes: Axes) -> None:
        for at, kind in enumerate(SHARES):
            those = [of[f"{score} {kind}"] for score in scores]
            means = [one.mean for one in those]
            errors = [[one.mean - one.low for one in those], [one.high - one.mean for one in those]]
            places = np.arange(len(scores)) + (at - 1) * 0.26
            axes.bar(places, means, 0.24, yerr=errors, label=kind, color=COLORS[at], capsize=2)
        axes.set_xticks(range(len(scores)), scores)
        axes.set_ylabel("accuracy")
        axes.legend(ncols=len(SHARES), loc="upper left")
        axes.set_ylim(0, 1.2 * max(one.high for one in of.values()))

    return png(draw, "Accuracy on new worlds, best epoch on dev, by kind of negatives")


if __name__ == "__main__":
    command(main)
