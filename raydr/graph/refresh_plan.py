"""The steps of refresh rounds, laid out before anything runs. Needs the config, the corpus and the data set, no Ray.

::

    refresh/round-0/    what the first round starts from: the BM25 index, the untrained model, a guide
    refresh/round-R/    run-train, mine, judge-NAME, judged | train | passages, index, run-SPLIT, evaluate-SPLIT
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raydr.config.refresh import RefreshConfig
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph import stage_calls as make
from raydr.graph.retrieval_steps import Make, StepBook, encoders, encoding, trainers
from raydr.graph.steps import Resources, Step
from raydr.models.checkpoint import checkpoint_fingerprint, cross_encoder_fingerprint
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.runtime.tracking import TrackerHandle
from raydr.stages.apply_verdicts import FILTER_VERSION
from raydr.stages.bm25 import VERSION as BM25_VERSION
from raydr.stages.judge import VERSION as JUDGE_VERSION
from raydr.stages.negatives_statistics import VERSION as STATISTICS_VERSION
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


@dataclass
class Round:
    """The steps of one round that are looked at afterwards."""

    number: int
    config: RunConfig
    model: Step
    mined: Step | None
    judged: Step | None
    verdicts: list[Step]
    #: What counts the candidates that training draws from.
    statistics: Step | None
    #: Passage vectors and index of the round's model.
    vectors: list[Step]
    runs: dict[str, Step]
    evaluations: dict[str, Step]


@dataclass
class Arm:
    """One refresh."""

    name: str
    settings: RefreshConfig
    rounds: list[Round] = field(default_factory=list)

    def steps(self) -> set[str]:
        """Keys of all steps that only lead to this arm's rounds, and of those that others share."""
        found: set[str] = set()
        pending = [
            step
            for one in self.rounds
            for step in (one.model, *one.evaluations.values(), *([one.statistics] if one.statistics else []))
        ]
        while pending:
            step = pending.pop()
            if step.key not in found:
                found.add(step.key)
                pending.extend(step.needs.values())
        return found


@dataclass
class RefreshPlan:
    """All arms, and their steps in an order in which they could run one after the other."""

    arms: list[Arm]
    steps: list[Step]
    book: StepBook


def plan_refresh(
    config: RunConfig,
    root: Folder,
    dataset: Artifact,
    corpus: Artifact,
    tracker: Callable[[Step], TrackerHandle | None] = lambda step: None,
) -> RefreshPlan:
    """Lay out the steps of every arm; arms share the steps that are the same.

    Args:
        config: the run.
        root: the folder of the refresh.
        dataset: the data set that is trained on.
        corpus: its corpus.
        tracker: where a training step logs its metrics, asked when it runs.

    Raises:
        ConfigError: a judge is unknown or cannot judge here.
        ModelError: a checkpoint is not there.
    """
    book = StepBook(root, dataset, corpus)
    arms = [
        Arm(name, settings, _Planner(config, settings, book, tracker).rounds())
        for name, settings in config.refresh_arms().items()
    ]
    return RefreshPlan(arms, sorted(book.steps.values(), key=lambda step: step.group), book)


@dataclass
class _Planner:
    config: RunConfig
    settings: RefreshConfig
    #: Of all arms.
    book: StepBook
    tracker: Callable[[Step], TrackerHandle | None]
    classifier: Step | None = None

    def __post_init__(self) -> None:
        self.dataset, self.corpus = self.book.dataset, self.book.corpus

    def rounds(self) -> list[Round]:
        made: list[Round] = []
        for number in range(1, self.settings.num_rounds + 1):
            made.append(self._round(number, made[-1] if made else None))
        return made

    # -- one round

    def _round(self, number: int, last: Round | None) -> Round:
        config = self.config.refresh_round(self.settings, number)
        train_split = config.data.train_split
        mined = judged = pairs = statistics = None
        verdicts: list[Step] = []
        if config.train.num_hard_negatives:
            mined = self._mine(config, number, last)
        negatives_verdicts, pairs_verdicts = self._verdicts(config, number, last, mined)
        verdicts = negatives_verdicts + pairs_verdicts
        if pairs_verdicts:
            pairs = self._filter_pairs(config, number, pairs_verdicts)
        if mined is not None:
            if negatives_verdicts:
                judged = self._put_together(config, number, mined, negatives_verdicts)
            statistics = self._add(
                number,
                "statistics",
                "negatives_statistics",
                {"split": train_split, "version": STATISTICS_VERSION, **_evaluated_answers(config)},
                {"negatives": judged or mined},
                partial(make.count_negatives, config, train_split, self.dataset.folder, self.corpus.folder),
                work=self.book.num_queries(train_split),
            )
        model = self._train(config, number, last, judged or mined, pairs)
        place = f"round-{number}"
        passages, index = self.book.index(place, config, model)
        runs, evaluations = {}, {}
        for split in self._splits():
            queries = self.book.queries(place, split, config, model)
            runs[split] = self.book.search(place, split, config, index, queries, number)
            evaluations[split] = self.book.evaluate(
                f"{place}/evaluate-{split}", split, config, {place: runs[split]}, number
            )
        return Round(number, config, model, mined, judged, verdicts, statistics, [passages, index], runs, evaluations)

    def _splits(self) -> list[str]:
        data = self.config.data
        return self.settings.evaluate_splits or list(dict.fromkeys([data.dev_split, *data.test_splits]))

    # -- candidates

    def _mine(self, config: RunConfig, number: int, last: Round | None) -> Step:
        assert config.negatives is not None
        split, miner = config.data.train_split, config.negatives.miner
        settings: dict[str, Any] = {"split": split, "round": number, **config.negatives.fingerprint_settings()}
        needs: dict[str, Step] = {}
        if miner == "bm25":
            needs["run"] = self._bm25_run(config, split)
        elif miner == "run":
            index, queries = self._miner(config, last, split)
            needs["run"] = self.book.search(f"round-{number}", split, config, index, queries, number)
        return self._add(
            number,
            "mine",
            "negatives",
            settings,
            needs,
            partial(make.mine, config, split, self.dataset.folder, self.corpus.folder, miner, number),
            work=self.book.num_queries(split),
        )

    def _miner(self, config: RunConfig, last: Round | None, split: str) -> tuple[Step, Step]:
        """Index and queries of the model that mines."""
        if last is not None:
            return last.vectors[1], self.book.queries(f"round-{last.number}", split, config, last.model)
        model, prefix = self._untrained(config), "untrained-"
        index = self.book.index("round-0", config, model, prefix)[1]
        return index, self.book.queries("round-0", split, config, model, prefix)

    def _bm25_run(self, config: RunConfig, split: str) -> Step:
        index = self._add(
            0,
            "bm25",
            "bm25",
            {**config.bm25.fingerprint_settings(), "version": BM25_VERSION},
            {},
            partial(make.bm25, config, self.corpus.folder),
            work=self.book.num_passages(),
        )
        return self._add(
            0,
            f"bm25-run-{split}",
            "run",
            {"split": split, "top_k": config.search.top_k},
            {"bm25": index},
            partial(make.search_bm25, config, split, self.dataset.folder, self.corpus.folder),
            work=self.book.num_queries(split),
        )

    # -- judges

    def _verdicts(
        self, config: RunConfig, number: int, last: Round | None, mined: Step | None
    ) -> tuple[list[Step], list[Step]]:
        found: dict[str, list[Step]] = {"negatives": [], "pairs": []}
        for name in self._judge_names(number):
            judge = config.judge.judge(name)
            if mined is None and judge.subject == "negatives":
                raise ConfigError(
                    f"refresh.judges: {name} judges hard negatives, and with train.num_hard_negatives 0 nothing is "
                    "mined; set it to 1 or more, or leave the judge out"
                )
            found[judge.subject].append(self._judge(config, number, last, mined, judge))
        return found["negatives"], found["pairs"]

    def _judge_names(self, number: int) -> Sequence[str]:
        changes = self.settings.rounds.get(number)
        return self.settings.judges if changes is None or changes.judges is None else changes.judges

    def _judge(self, config: RunConfig, number: int, last: Round | None, mined: Step | None, judge: Judge) -> Step:
        split, needs = config.data.train_split, {}
        work = self.book.num_queries(split)
        if mined is not None and judge.subject == "negatives":
            needs["negatives"] = mined
            work = f"{mined.work}, {config.negatives.depth if config.negatives else 0} candidates each"
        model = self._judges_model(config, number, last, mined, judge)
        if model is not None:
            needs["model"] = model
        settings = {
            "split": split,
            "judge": judge.fingerprint_settings(),
            "seed": config.seed,
            "version": JUDGE_VERSION,
            **encoding(config),
        }
        return self._add(
            number,
            f"judge-{judge.name}",
            "verdicts",
            settings,
            needs,
            partial(make.judge, config, split, self.dataset.folder, self.corpus.folder, judge),
            demand=encoders(config),
            work=work,
        )

    def _judges_model(
        self, config: RunConfig, number: int, last: Round | None, mined: Step | None, judge: Judge
    ) -> Step | None:
        if judge.reads == "cross_encoder":
            return self._classifier(config, number, mined)
        if judge.reads == "guide":
            guide = config.model_copy(update={"model": config.judge.guide})
            return self._add(
                0, "guide", "model", _untrained_key(guide), {}, partial(make.untrained, guide), work="no training"
            )
        current = last.model if last is not None else self._untrained(config)
        if isinstance(judge, Sieve):
            assert config.negatives is not None
            assert mined is not None
            return self._add(
                number,
                "sieve-model",
                "model",
                {
                    "sieve": config.judge.sieve.fingerprint_settings(),
                    "depth": config.negatives.depth,
                    "train": make.training_settings(config),
                },
                {"model": current, "negatives": mined},
                partial(make.train_sieve, config, self.dataset.folder, self.corpus.folder),
                demand=trainers(config),
                work=f"{self.book.num_queries(config.data.train_split)} x {config.judge.sieve.num_epochs} epochs",
            )
        if judge.reads == "retriever" and config.judge.scores == "miner":
            return None
        return current

    def _classifier(self, config: RunConfig, number: int, mined: Step | None) -> Step:
        if self.settings.classifier == "once" and self.classifier is not None:
            return self.classifier
        settings = config.judge.classifier
        needs: dict[str, Step] = {}
        if settings.num_hard_negatives:
            if mined is None:
                raise ConfigError(
                    f"judge.classifier.num_hard_negatives is {settings.num_hard_negatives}, and with "
                    "train.num_hard_negatives 0 nothing is mined: set the first to 0, or the second to 1 or more"
                )
            needs["negatives"] = mined
        self.classifier = self._add(
            number,
            "classifier",
            "cross_encoder",
            {
                **settings.fingerprint_settings(exclude={"model": {"checkpoint"}}),
                "checkpoint": cross_encoder_fingerprint(settings.model),
                "split": config.data.train_split,
                "seed": config.seed,
            },
            needs,
            partial(make.train_classifier, config, self.dataset.folder, self.corpus.folder),
            demand=trainers(config),
            work=f"{self.book.num_queries(config.data.train_split)} x {settings.num_epochs} epochs",
        )
        return self.classifier

    def _put_together(self, config: RunConfig, number: int, mined: Step, verdicts: list[Step]) -> Step:
        return self._add(
            number,
            "judged",
            "negatives",
            {"split": config.data.train_split},
            {"negatives": mined} | {step.label: step for step in verdicts},
            partial(make.apply_verdicts, config, config.data.train_split),
            work=self.book.num_queries(config.data.train_split),
        )

    def _filter_pairs(self, config: RunConfig, number: int, verdicts: list[Step]) -> Step:
        return self._add(
            number,
            "pairs",
            "dataset",
            {"split": config.data.train_split, "version": FILTER_VERSION},
            {step.label: step for step in verdicts},
            partial(make.filter_pairs, config, config.data.train_split, self.dataset.folder),
            work=self.book.num_queries(config.data.train_split),
        )

    # -- models

    def _untrained(self, config: RunConfig) -> Step:
        return self._add(
            0, "untrained", "model", _untrained_key(config), {}, partial(make.untrained, config), work="no training"
        )

    def _train(
        self, config: RunConfig, number: int, last: Round | None, negatives: Step | None, pairs: Step | None
    ) -> Step:
        changes = self.settings.rounds.get(number)
        start = (changes.start if changes else None) or self.settings.start
        optimizer = (changes.optimizer if changes else None) or self.settings.optimizer
        needs: dict[str, Step] = {}
        if negatives is not None:
            needs["negatives"] = negatives
        if pairs is not None:
            needs["pairs"] = pairs
        with_optimizer = False
        if last is not None and start == "last":
            needs["start"] = last.model
            with_optimizer = optimizer == "kept"
        keeps = self._keeps_optimizer(number)
        settings = {
            **make.training_settings(config),
            "checkpoint": checkpoint_fingerprint(config.model) if "start" not in needs else "",
            "with_optimizer": with_optimizer,
            "keep_optimizer": keeps,
        }

        def run(folder: Folder, inputs: dict[str, Folder]) -> Artifact:
            return make.train(
                config, self.dataset.folder, self.corpus.folder, self.tracker(step), with_optimizer, keeps, folder,
                inputs,
            )  # fmt: skip

        step = self._add(
            number,
            "train",
            "model",
            settings,
            needs,
            run,
            demand=trainers(config),
            work=f"{self.book.num_queries(config.data.train_split)} x {config.train.num_epochs} epochs",
            # Whether there is another round at all depends on how good the last one is.
            after=tuple(last.evaluations.values()) if last is not None and self.settings.patience else (),
        )
        return step

    def _keeps_optimizer(self, number: int) -> bool:
        """Whether the next round goes on with this round's optimiser."""
        if number >= self.settings.num_rounds:
            return False
        changes = self.settings.rounds.get(number + 1)
        start = (changes.start if changes else None) or self.settings.start
        return start == "last" and ((changes.optimizer if changes else None) or self.settings.optimizer) == "kept"

    # -- small things

    def _add(
        self,
        number: int,
        name: str,
        kind: str,
        settings: dict[str, Any],
        needs: dict[str, Step],
        run: Make,
        demand: Resources | None = None,
        **more: Any,
    ) -> Step:
        return self.book.add(f"round-{number}/{name}", kind, settings, needs, run, demand, group=number, **more)


def _untrained_key(config: RunConfig) -> dict[str, Any]:
    return {
        "model": config.model.fingerprint_settings(exclude={"checkpoint", "passage_checkpoint"}),
        "checkpoint": checkpoint_fingerprint(config.model),
        "seed": config.seed,
    }


def _evaluated_answers(config: RunConfig) -> dict[str, Any]:
    return config.evaluate.fingerprint_settings(include={"answer_match", "answer_query_prefixes"})
