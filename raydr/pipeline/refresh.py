"""Refresh rounds: train, encode, index, search, mine, judge, train again, with an evaluation after each round.

After a kill the same command resumes: finished nodes are identified by their keys, partial ones by their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydr.artefacts import Context, Node
from raydr.artefacts.evaluation import REPORT, evaluation, load_result
from raydr.config.run import RunConfig
from raydr.config.sections import RefreshConfig
from raydr.console import show_summary, show_table
from raydr.errors import ConfigError
from raydr.evaluation.metrics import parse_measures
from raydr.pages.refresh import RoundResult, candidate_rows, refresh_page, refresh_rows
from raydr.pages.run import ModelRecord
from raydr.pipeline.judging import judge_held_out
from raydr.pipeline.planning import Inventory
from raydr.pipeline.rounds import Arm, FinishedRounds, Round, chosen_measure, lay_out, next_rounds
from raydr.pipeline.running import time_of
from raydr.pipeline.session import Session
from raydr.store import Folder

#: Results of the rounds of each arm, and the report.
RESULTS, PAGE = "rounds.json", "report.html"
#: Names of the evaluations of all rounds together, by split.
COMPARISON = "refresh/comparison"


@dataclass
class RefreshOutcome:
    """Results of a refresh: rounds by arm, and the places of its files."""

    rounds: dict[str, list[RoundResult]]
    folder: Folder
    #: Number of each arm's best round on the dev split.
    best: dict[str, int]


def finish_rounds(session: Session, context: Context) -> FinishedRounds:
    """Run the unfinished rounds of a refresh without arms; their artefacts get no names."""
    [finished] = map(FinishedRounds, lay_out(context))
    for rounds in next_rounds([finished], session.inventory):
        session.make(*(target for refresh_round in rounds for target in refresh_round.targets()), anew=[])
    return finished


def run_refresh(session: Session) -> RefreshOutcome | None:
    """Run all rounds of all arms; finished nodes are reused.

    Returns:
        Results; None in a dry run.

    Raises:
        ConfigError: the settings do not fit data or cluster.
    """
    return _Refresh(session).run()


@dataclass
class _Refresh:
    session: Session

    def __post_init__(self) -> None:
        self.config = self.session.config
        self.root = self.session.places.root / "refresh"
        for settings in self.config.refresh_arms().values():
            check_choice(self.config, settings)
        # --again repeats the rounds, but not the preparation of data.
        self.session.recipe.dataset()
        self.arms = lay_out(self.session.recipe.context)
        self.finished = {arm.name: FinishedRounds(arm) for arm in self.arms}
        for arm in self.arms:
            for refresh_round in arm.rounds:
                for name, node in self._named(arm, refresh_round).items():
                    self.session.recipe.named(name, node)

    def _named(self, arm: Arm, refresh_round: Round) -> dict[str, Node]:
        """Return the kept artefacts of a round by name; vectors are among them only if all are kept."""
        place = f"refresh/{arm.name}/round-{refresh_round.number}"
        named = {
            "model": refresh_round.model,
            "candidates": refresh_round.mined,
            "judged": refresh_round.judged.negatives,
        }
        named |= {"statistics": refresh_round.statistics, "ranker": refresh_round.ranker}
        named |= {f"verdicts-{node.arguments['judge'].name}": node for node in refresh_round.verdicts}
        named |= {f"run-{split}": node for split, node in refresh_round.runs.items()}
        named |= {f"evaluation-{split}": node for split, node in refresh_round.evaluations.items()}
        if arm.settings.keep_vectors is None:
            named |= {"passages": refresh_round.index.inputs["embeddings"], "index": refresh_round.index}
        return {f"{place}/{name}": node for name, node in named.items() if node is not None}

    def run(self) -> RefreshOutcome | None:
        if self.session.dry_run:
            self._make([refresh_round for arm in self.arms for refresh_round in arm.rounds])
            return None
        for rounds in next_rounds(list(self.finished.values()), self.session.inventory):
            self._make(rounds)
        return self._finish()

    def _make(self, rounds: list[Round]) -> None:
        targets = [target for refresh_round in rounds for target in refresh_round.targets()]
        data = {node.key for name, node in self.session.recipe.names.items() if "/" not in name}
        anew = [node for refresh_round in rounds for key, node in refresh_round.nodes().items() if key not in data]
        self.session.make(*targets, anew=anew, moving=True, verified=True)

    # -- results

    def _finish(self) -> RefreshOutcome:
        best = {name: done.best.number for name, done in self.finished.items()}
        # An error above must not remove the vectors.
        self._prune()
        rounds = {
            name: [round_result(self.session.inventory, done.arm, refresh_round) for refresh_round in done.rounds]
            for name, done in self.finished.items()
        }
        self.root.write_json(
            RESULTS,
            {
                name: {"best": best[name], "rounds": [result.as_json() for result in results]}
                for name, results in rounds.items()
            },
        )
        self._report(rounds, best, self._compare())
        return RefreshOutcome(rounds, self.root, best)

    def _prune(self) -> None:
        """Remove passage vectors and indexes that no arm keeps, and names that the settings no longer have."""
        places, kept = self.session.places, set[str]()
        old: dict[str, Node] = {}
        for name, finished in self.finished.items():
            done, keep = finished.rounds, finished.arm.settings.keep_vectors
            names = {name for refresh_round in done for name in self._named(finished.arm, refresh_round)}
            for refresh_round in done if keep is None else done[-keep:]:
                place = f"refresh/{name}/round-{refresh_round.number}"
                for vectors, node in zip(("passages", "index"), refresh_round.vectors(), strict=True):
                    kept.add(node.key)
                    names.add(f"{place}/{vectors}")
                    if self.session.inventory.manifest(node) is not None:
                        places.point(f"{place}/{vectors}", node.kind, node.key)
            if keep is not None:
                old |= {key: node for refresh_round in done for key, node in refresh_round.nodes().items()}
            self._forget(f"refresh/{name}", names)
        self.session.prune(node for key, node in old.items() if key not in kept)

    def _compare(self) -> list[str]:
        """Evaluate, for each split, all rounds of all arms against the first round of the first arm."""
        several = len(self.arms) > 1
        runs: dict[str, dict[str, Node]] = {}
        for name, done in self.finished.items():
            for refresh_round in done.rounds:
                system = f"{name}-{refresh_round.number}" if several else f"round-{refresh_round.number}"
                for split, run in refresh_round.runs.items():
                    systems = runs.setdefault(split, {})
                    if run.key not in {other.key for other in systems.values()}:
                        systems[system] = run
        splits = [split for split, systems in runs.items() if len(systems) > 1]
        for split in splits:
            trainings = [refresh_round.config.train for done in self.finished.values() for refresh_round in done.rounds]
            context = self.session.recipe.context
            suspects = judge_held_out(context, split, trainings)
            node = evaluation(context, split, runs[split], suspects, label=f"compare-{split}")
            self.session.make(self.session.recipe.named(f"{COMPARISON}/{split}", node), moving=True)
        self._forget(COMPARISON, {f"{COMPARISON}/{split}" for split in splits})
        return splits

    def _forget(self, under: str, names: set[str]) -> None:
        """Remove the other names below a prefix, which a refresh with other settings has made."""
        for stale in set(self.session.places.names(under)) - names:
            self.session.places.forget(stale)

    def _report(self, rounds: dict[str, list[RoundResult]], best: dict[str, int], compared: Sequence[str]) -> None:
        config, tracker = self.config, self.session.tracker
        flat = [result for results in rounds.values() for result in results]
        dev = config.data.dev_split
        splits = sorted({split: None for result in flat for split in result.measures}, key=lambda split: split != dev)
        for split in splits:
            columns, rows = refresh_rows(flat, split, intervals=False)
            show_table(f"{split}, after each round", columns, rows)
        columns, rows = candidate_rows(flat)
        if rows:
            show_table("likely false negatives among the candidates", columns, rows)
        pages = {split: f"comparison/{split}/{REPORT}" for split in compared}
        with self.root.publish(PAGE) as path:
            page = refresh_page(config.name, flat, splits, best, pages, config.evaluate.confidence)
            Path(path).write_text(page, encoding="utf-8")
        for name in (PAGE, RESULTS):
            tracker.log_artifact(self.root.localize(name))
        facts: dict[str, object] = {}
        for arm in self.arms:
            label, number = arm.measure, best[arm.name]
            for result in rounds[arm.name]:
                values = {split: result.measure(split, label) for split in splits}
                tracker.log_metrics(
                    {
                        f"{arm.name}/{split}/{label}": summary.mean
                        for split, summary in values.items()
                        if summary is not None
                    },
                    result.number,
                )
            facts[f"best round ({arm.name})"] = number
            facts[f"its model ({arm.name})"] = self.root / f"{arm.name}/round-{number}/model"
        facts |= {"rounds": self.root / RESULTS, "report": self.root / PAGE}
        show_summary("refresh", facts)


def check_choice(config: RunConfig, settings: RefreshConfig) -> None:
    """Check that the best round can be selected.

    Raises:
        ConfigError: the dev split or the selecting measure is not evaluated.
    """
    check_dev_split(config)
    split = config.data.dev_split
    if settings.evaluate_splits and split not in settings.evaluate_splits:
        raise ConfigError(f"refresh.evaluate_splits has no {split!r}: the dev split selects the best round; add it")
    check_measure(config, settings)


def check_dev_split(config: RunConfig) -> None:
    """Check that there is a dev split, by which rounds and trials are compared.

    Raises:
        ConfigError: there is none.
    """
    if not config.data.dev_split:
        raise ConfigError("data.dev_split is empty, but rounds and trials are compared on the dev split: name a split")


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
    nodes, ranker = _own_nodes(arm, done), done.ranker
    existing = {node.label: node for node in nodes if inventory.manifest(node) is not None}
    return RoundResult(
        arm=arm.name,
        number=done.number,
        measures=measures,
        negatives=inventory.open(done.statistics).info if done.statistics is not None else {},
        verdicts={inventory.open(node).info["judge"]: inventory.open(node).info for node in done.verdicts},
        seconds=_by_stage(inventory, nodes),
        folders={label: str(inventory.folder(node)) for label, node in existing.items()},
        fingerprints={label: node.key for label, node in existing.items()},
        ranker=None if ranker is None else ModelRecord(f"{arm.name}, round {done.number}", inventory.open(ranker).info),
    )


#: Stage to which a node's duration is added, by its name in the round, else by its kind.
_STAGES = {
    name: stage
    for stage, names in {
        "train": "model warmup ranker ranker_scores",
        "encode": "quantized embeddings",
        "index": "index",
        "search": "run bm25",
        "mine": "negatives negatives_statistics",
        "judge": "verdicts cross_encoder dataset",
        "evaluate": "evaluation",
    }.items()
    for name in names.split()
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
