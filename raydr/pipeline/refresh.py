"""Refresh rounds: train, encode, index, search, mine, judge, train again, with an evaluation after each round.

After a kill the same command resumes: finished nodes are identified by their keys, partial ones by their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import REPORT, evaluation
from raydr.console import say, show_summary, show_table
from raydr.pages.refresh import RoundResult, candidate_rows, refresh_page, refresh_rows
from raydr.pipeline.refresh_results import (
    best_round,
    check_choice,
    chosen_measure,
    dev_value,
    finished_rounds,
    out_of_patience,
    round_result,
)
from raydr.pipeline.rounds import Arm, Round, lay_out
from raydr.pipeline.session import Session
from raydr.pipeline.training import judge_held_out
from raydr.store.folder import Folder

#: Results of the rounds of each arm, and the report.
RESULTS, PAGE = "rounds.json", "report.html"


@dataclass
class RefreshOutcome:
    """Results of a refresh: rounds by arm, and the places of its files."""

    rounds: dict[str, list[RoundResult]]
    folder: Folder
    #: Number of each arm's best round on the dev split.
    best: dict[str, int]


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
    #: Last round of arms that stopped early.
    stopped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config, self.inventory = self.session.config, self.session.inventory
        self.root = self.session.places.root / "refresh"
        for settings in self.config.refresh_arms().values():
            check_choice(self.config, settings)
        # --again repeats the rounds, but not the preparation of data.
        self.session.recipe.dataset()
        self.arms = lay_out(self.session.recipe.context)
        for arm in self.arms:
            for refresh_round in arm.rounds:
                self._name(arm, refresh_round)

    def _name(self, arm: Arm, refresh_round: Round) -> None:
        """Names for the kept artefacts of a round; vectors get names only if all are kept."""
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
        for name, node in named.items():
            if node is not None:
                self.session.recipe.named(f"{place}/{name}", node)

    def run(self) -> RefreshOutcome | None:
        session = self.session
        if session.dry_run:
            session.make(*self._targets(self.arms), moving=True)
            return None
        if any(arm.settings.patience for arm in self.arms):
            for number in range(1, max(len(arm.rounds) for arm in self.arms) + 1):
                # The last round's quality decides whether another round runs.
                wanted = [arm for arm in self.arms if number <= self.stopped.get(arm.name, len(arm.rounds))]
                self._make(self._targets(wanted, number))
                for arm in wanted:
                    self._stop_if_out_of_patience(arm)
        else:
            self._make(self._targets(self.arms))
        return self._finish()

    def _targets(self, arms: Sequence[Arm], last: int | None = None) -> list[Node]:
        return [target for arm in arms for refresh_round in arm.rounds[:last] for target in refresh_round.targets()]

    def _make(self, targets: list[Node]) -> None:
        rounds = {
            key: node
            for arm in self.arms
            for refresh_round in arm.rounds
            for key, node in refresh_round.nodes().items()
        }
        data = {node.key for name, node in self.session.recipe.names.items() if "/" not in name}
        self.session.make(
            *targets, anew=[node for key, node in rounds.items() if key not in data], moving=True, verified=True
        )

    def _stop_if_out_of_patience(self, arm: Arm) -> None:
        patience = arm.settings.patience
        if patience is None or arm.name in self.stopped:
            return
        done = finished_rounds(self.inventory, arm)
        values = [dev_value(self.inventory, self.config, arm.settings, refresh_round) for refresh_round in done]
        if out_of_patience(values, patience) and len(values) < len(arm.rounds):
            self.stopped[arm.name] = done[-1].number
            say(
                f"{arm.name}: {patience} {'round' if patience == 1 else 'rounds'} without a better "
                f"{self._measure(arm)} than round {done[values.index(max(values))].number}'s: stopping"
            )

    # -- results

    def _measure(self, arm: Arm) -> str:
        return chosen_measure(self.config, arm.settings)

    def _finish(self) -> RefreshOutcome:
        finished = {arm.name: finished_rounds(self.inventory, arm) for arm in self.arms}
        best = {
            arm.name: best_round(self.inventory, self.config, arm.settings, finished[arm.name]).number
            for arm in self.arms
        }
        # An error above must not remove the vectors.
        self._prune()
        rounds = {
            arm.name: [round_result(self.inventory, arm, refresh_round) for refresh_round in finished[arm.name]]
            for arm in self.arms
        }
        self.root.write_json(
            RESULTS,
            {
                name: {"best": best[name], "rounds": [result.as_json() for result in results]}
                for name, results in rounds.items()
            },
        )
        self._report(rounds, best, self._compare(finished))
        return RefreshOutcome(rounds, self.root, best)

    def _prune(self) -> None:
        """Remove passage vectors and indexes that no arm keeps."""
        kept: set[str] = set()
        old: dict[str, Node] = {}
        for arm in self.arms:
            done, keep = finished_rounds(self.inventory, arm), arm.settings.keep_vectors
            if keep is None:
                kept |= {node.key for refresh_round in done for node in refresh_round.vectors()}
                continue
            for refresh_round in done[-keep:]:
                place = f"refresh/{arm.name}/round-{refresh_round.number}"
                for name, node in zip(("passages", "index"), refresh_round.vectors(), strict=True):
                    kept.add(node.key)
                    self.session.places.point(f"{place}/{name}", node.kind, node.key)
            old |= {key: node for refresh_round in done for key, node in refresh_round.nodes().items()}
        self.session.prune(node for key, node in old.items() if key not in kept)

    def _compare(self, finished: dict[str, list[Round]]) -> list[str]:
        """Evaluate, for each split, all rounds of all arms against the first round of the first arm."""
        several = len(self.arms) > 1
        runs: dict[str, dict[str, Node]] = {}
        for arm in self.arms:
            for refresh_round in finished[arm.name]:
                system = f"{arm.name}-{refresh_round.number}" if several else f"round-{refresh_round.number}"
                for split, run in refresh_round.runs.items():
                    systems = runs.setdefault(split, {})
                    if run.key not in {other.key for other in systems.values()}:
                        systems[system] = run
        splits = [split for split, systems in runs.items() if len(systems) > 1]
        for split in splits:
            trainings = [refresh_round.config.train for rounds in finished.values() for refresh_round in rounds]
            context = self.session.recipe.context
            suspects = judge_held_out(context, split, trainings)
            node = evaluation(context, split, runs[split], suspects, label=f"compare-{split}")
            self.session.make(self.session.recipe.named(f"refresh/comparison/{split}", node), moving=True)
        return splits

    def _report(self, rounds: dict[str, list[RoundResult]], best: dict[str, int], compared: Sequence[str]) -> None:
        config, tracker = self.config, self.session.tracker
        flat = [result for results in rounds.values() for result in results]
        splits = list(dict.fromkeys(split for result in flat for split in result.measures))
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
            label, number = self._measure(arm), best[arm.name]
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
            facts[f"its model ({arm.name})"] = self.root.path(f"{arm.name}/round-{number}/model")
        facts |= {"rounds": self.root.path(RESULTS), "report": self.root.path(PAGE)}
        show_summary("refresh", facts)
