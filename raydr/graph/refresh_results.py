"""What the rounds of a refresh came to: measures, candidates, verdicts and time, read from their artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raydr.config.refresh import RefreshConfig
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.evaluation.comparison import MeasureSummary
from raydr.evaluation.metrics import parse_measures
from raydr.graph.refresh_plan import Arm, Round
from raydr.graph.stage_times import time_of
from raydr.graph.steps import Step
from raydr.store.artifact import MANIFEST
from raydr.store.folder import Folder


@dataclass(frozen=True)
class RoundResult:
    """One finished round of one arm.

    Args:
        arm: its name.
        number: of the round, from 1.
        measures: by split.
        negatives: counts of the candidates that training drew from; empty without hard negatives.
        verdicts: counts by judge.
        seconds: by stage; of a step that was interrupted, those of the attempt that finished it.
        folders: where its artefacts are, by step.
        fingerprints: of these artefacts.
    """

    arm: str
    number: int
    measures: dict[str, list[MeasureSummary]]
    negatives: dict[str, Any]
    verdicts: dict[str, dict[str, Any]]
    seconds: dict[str, float]
    folders: dict[str, str]
    fingerprints: dict[str, str]

    def measure(self, split: str, label: str) -> MeasureSummary | None:
        return next((one for one in self.measures.get(split, []) if one.measure == label), None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def finished_rounds(arm: Arm) -> list[Round]:
    """The rounds whose evaluations are all there."""
    return [one for one in arm.rounds if all(step.state() == "done" for step in one.evaluations.values())]


def chosen_measure(config: RunConfig, settings: RefreshConfig) -> str:
    """The label of the measure that says which round of a refresh is best."""
    return next(iter(parse_measures([settings.measure or config.evaluate.measures[0]])))


def check_choice(config: RunConfig, settings: RefreshConfig) -> None:
    """Refuse rounds of which the best could not be chosen in the end.

    Raises:
        ConfigError: they are not evaluated on the dev split, or not by the measure that chooses.
    """
    split = config.data.dev_split
    if settings.evaluate_splits and split not in settings.evaluate_splits:
        raise ConfigError(
            f"refresh.evaluate_splits has no {split!r}: the best round is chosen on the dev split; add it"
        )
    check_measure(config, settings)


def check_measure(config: RunConfig, settings: RefreshConfig) -> None:
    """Refuse a measure that is not taken.

    Raises:
        ConfigError: it is not among those of ``evaluate``.
    """
    if chosen_measure(config, settings) not in parse_measures(config.evaluate.measures):
        raise ConfigError(f"refresh.measure {settings.measure!r} is not among evaluate.measures: add it there")


def dev_measures(config: RunConfig, done: Round) -> dict[str, float]:
    """Means of all measures on the dev split, after a round."""
    from raydr.stages.evaluate import load_result

    found = load_result(done.evaluations[config.data.dev_split].open())
    return {one.measure: one.mean for one in found.summaries}


def dev_value(config: RunConfig, settings: RefreshConfig, done: Round) -> float:
    """The chosen measure on the dev split, after a round."""
    return dev_measures(config, done)[chosen_measure(config, settings)]


def best_round(config: RunConfig, settings: RefreshConfig, rounds: Sequence[Round]) -> Round:
    """The round with the highest chosen measure on the dev split, the first of equal ones.

    Raises:
        ConfigError: the measure is not taken.
    """
    return max(rounds, key=lambda one: dev_value(config, settings, one))


def out_of_patience(values: Sequence[float], patience: int | None) -> bool:
    """Whether no further round is begun: the best of these is so many rounds ago.

    >>> out_of_patience([0.1, 0.3, 0.2], 2), out_of_patience([0.1, 0.3, 0.2, 0.3], 2), out_of_patience([], 1)
    (False, True, False)
    """
    if patience is None or not values:
        return False
    return len(values) - 1 - list(values).index(max(values)) >= patience


def round_result(arm: Arm, done: Round, root: Folder) -> RoundResult:
    """Read what a finished round came to."""
    from raydr.stages.evaluate import load_result

    measures = {split: load_result(step.open()).summaries for split, step in done.evaluations.items()}
    steps = _steps_of(done)
    there = {step.label: step for step in steps if step.folder.exists(MANIFEST)}
    return RoundResult(
        arm=arm.name,
        number=done.number,
        measures=measures,
        negatives=done.statistics.open().info if done.statistics is not None else {},
        verdicts={one.open().info["judge"]: one.open().info for one in done.verdicts},
        seconds=_by_stage(root, steps),
        folders={label: str(step.folder) for label, step in there.items()},
        fingerprints={label: step.open().fingerprint for label, step in there.items()},
    )


#: What a step's time is counted as, by the beginning of its name.
_STAGES = {
    "train": "train",
    "passages": "encode",
    "queries": "encode",
    "untrained": "encode",
    "index": "index",
    "run": "search",
    "bm25": "search",
    "mine": "mine",
    "statistics": "mine",
    "judge": "judge",
    "classifier": "judge",
    "sieve": "judge",
    "guide": "judge",
    "pairs": "judge",
    "evaluate": "evaluate",
}


def _by_stage(root: Folder, steps: list[Step]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for step in steps:
        name = step.label.partition("/")[2]
        stage = next(stage for beginning, stage in _STAGES.items() if name.startswith(beginning))
        time = time_of(root, step.label, step.key)
        seconds[stage] = seconds.get(stage, 0.0) + (time.seconds if time is not None else 0.0)
    return seconds


def _steps_of(done: Round) -> list[Step]:
    """The round's steps, and those of round 0 that only the first round uses."""
    found: dict[str, Step] = {}
    pending = [done.model, *done.vectors, *done.evaluations.values()]
    if done.statistics is not None:
        pending.append(done.statistics)
    while pending:
        step = pending.pop()
        if step.key in found or (step.group != done.number and not (done.number == 1 and step.group == 0)):
            continue
        found[step.key] = step
        pending.extend(step.needs.values())
    return sorted(found.values(), key=lambda step: step.label)
