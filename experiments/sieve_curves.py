"""The passage sieve against other filters of hard negatives, with planted false ones (Wang et al., figures 2 and 3).

A retriever is trained on the noisy data. Its scores are what the sieve (throw-away models trained with several β),
margins and SimANS rest on; a cross-encoder classifier reads the passages. Each filter is one curve: the share of the
planted false negatives that it removes against the share of the true negatives that are lost with them. What is trained
is kept in the working folder and found again.

    python -m experiments.sieve_curves configs/experiments/sieve-openqa.yaml
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_training import ArmData, prepare_arm
from experiments.candidate_scores import (
    ScoredSplit,
    above_positive,
    relative_to_positive,
    score_by_model,
    score_split,
)
from experiments.filter_curves import Curve, Point, area_interval, operating_point, sampler_curve, threshold_curve
from experiments.results import Table, write_results
from raydr.compare import interval_text
from raydr.config.judge import JudgeConfig
from raydr.config.run import RunConfig
from raydr.graph.judging import Judged, Judging
from raydr.graph.node import Node
from raydr.graph.nodes.cross_fitting import MODEL
from raydr.graph.nodes.noise import scoring
from raydr.graph.nodes.training import training_of
from raydr.graph.places import TRAINED
from raydr.graph.session import Session, open_session
from raydr.losses.schedule import BetaSchedule
from raydr.negatives.samplers.simans import SimANS
from raydr.noise.judges.base import Judge
from raydr.noise.judges.classifier import Classifier
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.near_duplicate import NearDuplicate
from raydr.noise.judges.sieve import Sieve
from raydr.pages.figure import COLORS, Draw, grid, legend
from raydr.training.training import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Negatives that SimANS's authors draw for a query, and the peaks that they use.
SIMANS_DRAWN = 15
SIMANS = {"SimANS, b 0": SimANS(a=0.5, b=0.0), "SimANS, b 1": SimANS(a=0.5, b=1.0)}
SAMPLER_EPOCHS = 20
BOOTSTRAP = 1000


@dataclass(frozen=True)
class Filter:
    """One way of removing candidates.

    Args:
        setting: what its operating point is.
        curve: at every threshold.
        area_range: interval of its area; None where there is no threshold.
        point: with that setting; None where there is no decision on single candidates.
    """

    setting: str
    curve: Curve
    area_range: tuple[float, float] | None
    point: Point | None


@dataclass(frozen=True)
class SieveOut:
    """What the sieve's rule removes by the retriever's own scores after some epochs of its training."""

    epoch: int
    share: float
    removed: float


def main() -> None:
    parser = run_parser(__doc__, "sieve-curves")
    parser.add_argument(
        "--betas", type=numbers(float, 0, 1), default="0,0.25,0.5", help="of the sieve's throw-away models"
    )
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if config.inject_noise is None or config.inject_noise.kind != "false_negatives":
        parser.error(f"{arguments.config} plants no false negatives (inject_noise): there is nothing to be measured")
    with open_session(config) as session:
        recipe = session.recipe
        data = ArmData.of(session.make(recipe.dataset(), recipe.corpus(), recipe.candidates(config.data.train_split)))
        by_retriever, by_sieve, by_classifier, by_guide = score_all(session, data, arguments.betas)
        training = training_of(recipe.run)
        rates = data.pool().run(sieve_out_by_epoch, training, config.judge.judge("sieve"), data)
    filters = make_filters(config, by_retriever, by_sieve, by_classifier, by_guide)
    report(config, by_retriever, filters, rates, out)


def score_all(
    session: Session, data: ArmData, betas: list[float]
) -> tuple[ScoredSplit, dict[float, ScoredSplit], ScoredSplit, ScoredSplit]:
    """Train the retriever and what the filters need, and score all candidates by each of them."""
    config, recipe, split = session.config, session.recipe, session.config.data.train_split
    candidates, retriever = recipe.candidates(split), recipe.base_model(TRAINED)

    def learnt() -> Judged:
        return Judged(candidates, None)

    def asked(judge: Judge, changed: JudgeConfig) -> dict[str, Node]:
        run = recipe.run.of(config.model_copy(update={"judge": changed}))
        return Judging(run, split, candidates, lambda: retriever, learnt, recipe.verdicts).reads(judge)

    sieves = []
    for beta in betas:
        schedule = BetaSchedule(final=beta, start_epoch=0)
        settings = config.judge.sieve.model_copy(update={"beta": schedule})
        sieves.append(asked(Sieve(), config.judge.model_copy(update={"sieve": settings})))
    readers = [*sieves, asked(Classifier(), config.judge), asked(NearDuplicate(), config.judge)]
    trained, *others = session.make(retriever, *(node for roles in readers for node in roles.values()))
    made = iter(others)
    on_cpu = replace(recipe.run.facts.encoding(config.encode), device="cpu")
    pool = data.pool()
    inputs = [{role: next(made) for role in roles} | {"dataset": data.dataset.artifact} for roles in readers]
    scorings = [scoring(pool, one, config.encode, on_cpu, split) for one in ({MODEL: trained}, *inputs)]
    calls = [(at, data, split, scoring, at == len(scorings) - 1) for at, scoring in enumerate(scorings)]
    found = dict(pool.map(score_by_model, calls, "filters", "models"))
    *by_models, by_classifier, by_guide = (found[at] for at in range(len(calls)))
    return by_models[0], dict(zip(betas, by_models[1:], strict=True)), by_classifier, by_guide


def make_filters(
    config: RunConfig,
    by_retriever: ScoredSplit,
    by_sieve: dict[float, ScoredSplit],
    by_classifier: ScoredSplit,
    by_guide: ScoredSplit,
) -> dict[str, Filter]:
    """All filters by name; each judge decides by its own defaults, unless the config sets it."""
    truth_M, query_M = by_retriever.false_M, by_retriever.query_M

    def judged(judge: Judge, scored: ScoredSplit, setting: str, suspicion_M: Any = None) -> Filter:
        verdicts = judge.judge(scored.candidates)
        suspicion_M = verdicts.score if suspicion_M is None else suspicion_M
        flagged_M = np.asarray(verdicts.action) != "keep"
        return Filter(
            setting,
            threshold_curve(suspicion_M, truth_M),
            area_interval(suspicion_M, truth_M, query_M, BOOTSTRAP, config.seed),
            operating_point(flagged_M, truth_M, query_M, BOOTSTRAP, config.seed),
        )

    sieve, classifier = config.judge.judge("sieve"), config.judge.judge("classifier")
    assert isinstance(sieve, Sieve)
    assert isinstance(classifier, Classifier)
    filters = {"sieve's rule, untrained": judged(sieve, by_retriever, f"s above the {sieve.rule}")}
    for beta, scored in by_sieve.items():
        filters[f"sieve, β {beta:g}"] = judged(sieve, scored, f"s above the {sieve.rule}")
    filters["classifier"] = judged(classifier, by_classifier, f"p > {classifier.positive_above:g}")
    absolute, relative = Margin(mode="absolute", margin=0.0), Margin()
    filters["margin, absolute"] = judged(absolute, by_retriever, "s > s⁺", above_positive(by_retriever))
    at = f"s > {1 - relative.margin:g} s⁺"
    filters["margin, relative"] = judged(relative, by_retriever, at, relative_to_positive(by_retriever))
    nearly = config.judge.judge("near_duplicate")
    assert isinstance(nearly, NearDuplicate)
    at = f"like p⁺ by {nearly.likeness:g}, s > {1 - nearly.margin:g} s⁺"
    filters["near duplicate"] = judged(nearly, by_guide, at)
    for name, sampler in SIMANS.items():
        curve = sampler_curve(sampler, by_retriever, config.model.scale, config.seed, SAMPLER_EPOCHS)
        filters[name] = Filter(f"{SIMANS_DRAWN} are drawn", curve, None, None)
    return filters


def sieve_out_by_epoch(training: Training, judge: Judge, data: ArmData) -> list[SieveOut]:
    """Train the retriever in this process and sieve by its scores before training and after each epoch."""
    found: list[SieveOut] = []

    def sieve(epoch: int) -> None:
        scored = score_split(data, training.train_split, arm.encoder)
        flagged_M = np.asarray(judge.judge(scored.candidates).action) != "keep"
        found.append(SieveOut(epoch, float(flagged_M.mean()), float(flagged_M[scored.false_M].mean())))

    arm = prepare_arm(training, data, lambda progress: sieve(progress.epoch))
    sieve(0)
    arm.trainer.run()
    return found


def report(
    config: RunConfig, scored: ScoredSplit, filters: dict[str, Filter], rates: list[SieveOut], out: Path
) -> None:
    """Tables, JSON and a picture."""
    with_one = len(np.unique(scored.query_M[scored.false_M]))
    facts = (
        f"{len(scored.false_M):,} candidates of {len(scored.query_ids):,} queries, "
        f"{int(scored.false_M.sum()):,} planted false negatives in {with_one:,} queries"
    )
    tables = [filter_table(facts, filters), rate_table(filters, rates)]
    figures = {
        "facts": facts,
        "filters": {
            name: {
                "setting": one.setting,
                "area": one.curve.area,
                "area_range": one.area_range,
                "curve": _thinned(one.curve),
                "point": None if one.point is None else asdict(one.point),
            }
            for name, one in filters.items()
        },
        "sieve_out": [asdict(one) for one in rates],
    }
    write_results(out, config, tables, figures, {"curves.png": picture(filters, rates)})


def _thinned(curve: Curve) -> list[tuple[float, float]]:
    """At most 200 points of a curve, evenly over the share lost."""
    return [(float(lost), curve.removed_at(float(lost))) for lost in np.linspace(0.0, 1.0, 201)]


def filter_table(facts: str, filters: dict[str, Filter]) -> Table:
    """Each filter's curve in three numbers, and its operating point."""
    rows = []
    for name, one in filters.items():
        point = one.point
        if point is None:
            # The sampler's points are numbers drawn, counted from the end.
            drawn = min(SIMANS_DRAWN, len(one.curve.lost_T) - 1)
            at = [*(f"{shares[-1 - drawn]:.3f}" for shares in (one.curve.removed_T, one.curve.lost_T)), ""]
        else:
            at = [interval_text(point.removed, *point.removed_range), interval_text(point.lost, *point.lost_range)]
            at.append("" if np.isnan(point.precision) else interval_text(point.precision, *point.precision_range))
        shares = [f"{one.curve.removed_at(lost):.3f}" for lost in (0.1, 0.5)]
        area = interval_text(one.curve.area, *one.area_range) if one.area_range else f"{one.curve.area:.3f}"
        rows.append([name, area, *shares, one.setting, *at])
    at_default = ["removed", "lost", "precision"]
    columns = ["filter", "area", "removed at 10 % lost", "removed at 50 % lost", "default", *at_default]
    return Table(f"False negatives removed, true ones lost: {facts}", columns, rows)


def rate_table(filters: dict[str, Filter], rates: list[SieveOut]) -> Table:
    """The sieve-out rate by the retriever's training."""
    rows = [[str(one.epoch), f"{one.share:.3f}", f"{one.removed:.3f}"] for one in rates]
    columns = ["epochs of the retriever", "sieve-out rate", "of the planted ones"]
    return Table("The sieve's rule on the retriever's own scores", columns, rows)


def picture(filters: dict[str, Filter], rates: list[SieveOut]) -> bytes:
    """All curves with their operating points; the sieve-out rate by epoch."""
    from matplotlib.ticker import MaxNLocator

    styles = dict(zip(filters, (COLORS * 2)[: len(filters)], strict=True))

    def draw_curves(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linestyle=":", linewidth=1)
        for name, one in filters.items():
            dashed = "--" if name.startswith(("SimANS", "margin")) else "-"
            axes.plot(one.curve.lost_T, one.curve.removed_T, color=styles[name], linestyle=dashed, label=name)
            if one.point is not None:
                axes.plot(one.point.lost, one.point.removed, color=styles[name], marker="o", markersize=5)
        axes.set(xlabel="share of true negatives lost", ylabel="share of planted ones removed")
        legend(axes)

    def draw_rates(axes: Axes) -> None:
        epochs = [one.epoch for one in rates]
        axes.plot(epochs, [one.share for one in rates], marker="o", color=COLORS[0], label="all candidates")
        axes.plot(epochs, [one.removed for one in rates], marker="o", color=COLORS[5], label="planted ones")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="epochs of the retriever's training", ylabel="sieve-out rate", ylim=(0, 1))
        legend(axes)

    panels: list[tuple[str, Draw]] = [("every threshold, dots: defaults", draw_curves), ("sieve-out rate", draw_rates)]
    return grid(panels, "Filters of hard negatives", columns=1, shared_legend=False)


if __name__ == "__main__":
    command(main)
