"""Results of refresh rounds, read from their artefacts: measures, candidates, verdicts, durations."""

from __future__ import annotations

from collections.abc import Sequence

from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import load_result
from raydr.config.refresh import RefreshConfig
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.evaluation.metrics import parse_measures
from raydr.pages.ranker import RankerRecord
from raydr.pages.refresh import RoundResult
from raydr.pipeline.planning import Inventory
from raydr.pipeline.rounds import Arm, Round, chosen_measure
from raydr.pipeline.running import time_of


def check_choice(config: RunConfig, settings: RefreshConfig) -> None:
    """Check that the best round can be selected.

    Raises:
        ConfigError: the dev split or the selecting measure is not evaluated.
    """
    split = config.data.dev_split
    if settings.evaluate_splits and split not in settings.evaluate_splits:
        raise ConfigError(f"refresh.evaluate_splits has no {split!r}: the dev split selects the best round; add it")
    check_measure(config, settings)


def check_measure(config: RunConfig, settings: RefreshConfig) -> None:
    """Check that the selecting measure is evaluated.

    Raises:
        ConfigError: it is not in ``evaluate.measures``.
    """
    if chosen_measure(config, settings) not in parse_measures(config.evaluate.measures):
        raise ConfigError(f"refresh.measure {settings.measure!r} is not among evaluate.measures: add it there")


def round_result(inventory: Inventory, arm: Arm, done: Round) -> RoundResult:
    """Read the result of a finished round."""
    measures = {split: load_result(inventory.open(node)).summaries for split, node in done.evaluations.items()}
    nodes = _own_nodes(arm, done)
    there = {node.label: node for node in nodes if inventory.manifest(node) is not None}
    return RoundResult(
        arm=arm.name,
        number=done.number,
        measures=measures,
        negatives=inventory.open(done.statistics).info if done.statistics is not None else {},
        verdicts={inventory.open(node).info["judge"]: inventory.open(node).info for node in done.verdicts},
        seconds=_by_stage(inventory, nodes),
        folders={label: str(inventory.folder(node)) for label, node in there.items()},
        fingerprints={label: node.key for label, node in there.items()},
        ranker=_ranker_record(inventory, arm, done),
    )


def _ranker_record(inventory: Inventory, arm: Arm, done: Round) -> RankerRecord | None:
    if done.ranker is None:
        return None
    ranker = inventory.open(done.ranker)
    return RankerRecord(f"{arm.name}, round {done.number}", ranker.info)


#: Stage to which a node's duration is added, by its name in the round, else by its kind.
_STAGES = {
    "model": "train",
    "warmup": "train",
    "quantized": "encode",
    "embeddings": "encode",
    "index": "index",
    "run": "search",
    "bm25": "search",
    "negatives": "mine",
    "negatives_statistics": "mine",
    "verdicts": "judge",
    "cross_encoder": "judge",
    "ranker": "train",
    "ranker_scores": "train",
    "dataset": "judge",
    "evaluation": "evaluate",
}


def _by_stage(inventory: Inventory, nodes: Sequence[Node]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for node in nodes:
        time = time_of(inventory.places.root, node.label, node.key)
        stage = _STAGES.get(node.label.rpartition("/")[2]) or _STAGES.get(node.kind, node.kind)
        seconds[stage] = seconds.get(stage, 0.0) + (time.seconds if time is not None else 0.0)
    return seconds


def _own_nodes(arm: Arm, done: Round) -> list[Node]:
    """Return the nodes that this round is the first to need, without prepared data."""
    before = {key for earlier in arm.rounds[: done.number - 1] for key in earlier.nodes()}
    data = {"corpus", "dataset"}
    nodes = [
        node
        for key, node in done.nodes().items()
        if key not in before and (node.kind not in data or node.key == (done.judged.pairs and done.judged.pairs.key))
    ]
    return sorted(nodes, key=lambda node: node.label)
