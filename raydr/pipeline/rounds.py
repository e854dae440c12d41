"""Refresh rounds: train, encode, index, search, mine, judge, train again. They are declared as nodes, then run.

:func:`next_rounds` is the loop over rounds of refreshes, of trials that are refreshes, and of their confirmation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from raydr.artefacts import Context, Node, index, search
from raydr.artefacts.evaluation import evaluation, load_result
from raydr.artefacts.model import untrained
from raydr.artefacts.negatives import mined, statistics
from raydr.artefacts.ranker import cross_encoder
from raydr.config.run import RANKER, RunConfig
from raydr.config.sections import RefreshConfig
from raydr.console import counted, say
from raydr.errors import ConfigError
from raydr.evaluation.metrics import parse_measures
from raydr.noise.judges.base import Judge
from raydr.pipeline.judging import (
    Judged,
    Judging,
    active_judges,
    classifier_data,
    declare_training,
    judge_all,
    judge_held_out,
)
from raydr.pipeline.planning import Inventory
from raydr.pipeline.recipe import Recipe


@dataclass
class Round:
    """The nodes of a round whose results are read."""

    number: int
    config: RunConfig
    model: Node
    #: The cross-encoder whose scores the model's training reads, if the round trains a cross-encoder.
    ranker: Node | None
    mined: Node | None
    judged: Judged
    verdicts: list[Node]
    #: Counts of the candidates from which training draws.
    statistics: Node | None
    #: Index of the passage vectors of the round's model.
    index: Node
    runs: dict[str, Node]
    evaluations: dict[str, Node]

    def targets(self) -> list[Node]:
        """Return the model, the statistics of candidates and the evaluations; all other nodes are their inputs."""
        return [self.model, *([self.statistics] if self.statistics is not None else []), *self.evaluations.values()]

    def vectors(self) -> list[Node]:
        """Return passage vectors and index."""
        return [self.index.inputs["embeddings"], self.index]

    def nodes(self) -> dict[str, Node]:
        """Return all nodes of the round and of earlier rounds, by key, in a valid order."""
        nodes: dict[str, Node] = {}
        for target in self.targets():
            nodes |= {**target.ancestors(), target.key: target}
        return nodes


@dataclass
class Arm:
    """A refresh with its finished and unfinished rounds."""

    name: str
    settings: RefreshConfig
    rounds: list[Round]

    @property
    def measure(self) -> str:
        """Label of the measure that selects the best round."""
        return chosen_measure(self.rounds[0].config, self.settings)


@dataclass(eq=False)
class FinishedRounds:
    """The finished rounds of an arm."""

    arm: Arm
    #: Means of all measures on the dev split for each finished round.
    dev: list[dict[str, float]] = field(default_factory=list)

    @property
    def rounds(self) -> list[Round]:
        return self.arm.rounds[: len(self.dev)]

    @property
    def values(self) -> list[float]:
        """The selecting measure of each finished round."""
        return [means[self.arm.measure] for means in self.dev]

    @property
    def best(self) -> Round:
        """The first round with the highest value."""
        return self.rounds[self.values.index(max(self.values))]

    @property
    def over(self) -> bool:
        """Whether the arm has ended: all rounds are finished, or patience is exhausted."""
        return len(self.dev) == len(self.arm.rounds) or out_of_patience(self.values, self.arm.settings.patience)


def next_rounds(
    arms: Sequence[FinishedRounds], inventory: Inventory, single_rounds: bool = False
) -> Iterator[list[Round]]:
    """Yield the rounds to make next, until each arm has ended; the only loop over rounds.

    The caller makes these rounds before it continues; their results are then read and added to their arms. Arms advance
    together. All rounds are yielded at once, unless the result of a round decides on the next.

    Args:
        arms: the arms, at first without finished rounds.
        inventory: inventory of the artefacts.
        single_rounds: yield a single round of each arm, so that the caller can stop after each.
    """
    patient = any(finished.arm.settings.patience for finished in arms)
    step = 1 if single_rounds or patient else max(len(finished.arm.rounds) for finished in arms)
    while advancing := [finished for finished in arms if not finished.over]:
        begun = [finished.arm.rounds[len(finished.dev) :][:step] for finished in advancing]
        yield [refresh_round for rounds in begun for refresh_round in rounds]
        for finished, rounds in zip(advancing, begun, strict=True):
            finished.dev += [_dev_measures(inventory, refresh_round) for refresh_round in rounds]
            if finished.over and len(finished.dev) < len(finished.arm.rounds):
                patience = counted(finished.arm.settings.patience or 0, "round")
                best = f"{finished.arm.measure} than round {finished.best.number}'s"
                say(f"{finished.arm.name}: {patience} without a better {best}: stopping")


def _dev_measures(inventory: Inventory, done: Round) -> dict[str, float]:
    result = load_result(inventory.open(done.evaluations[done.config.data.dev_split]))
    return {summary.measure: summary.mean for summary in result.summaries}


def out_of_patience(values: Sequence[float], patience: int | None) -> bool:
    """Return whether none of the last ``patience`` rounds has a higher value than the rounds before.

    >>> out_of_patience([0.1, 0.3, 0.2], 2), out_of_patience([0.1, 0.3, 0.2, 0.3], 2), out_of_patience([], 1)
    (False, True, False)
    """
    if patience is None or not values:
        return False
    return len(values) - 1 - list(values).index(max(values)) >= patience


def chosen_measure(config: RunConfig, settings: RefreshConfig) -> str:
    """Return the label of the measure that selects the best round."""
    return next(iter(parse_measures([settings.measure or config.evaluate.measures[0]])))


def lay_out(context: Context) -> list[Arm]:
    """Declare the rounds of all arms of a config; arms share equal nodes.

    Raises:
        ConfigError: a judge is unknown or not applicable.
        ModelError: a checkpoint is missing.
    """
    arms = context.config.refresh_arms()
    return [Arm(name, settings, _lay_out(context, name, arms)) for name, settings in arms.items()]


def _lay_out(run: Context, name: str, arms: Mapping[str, RefreshConfig]) -> list[Round]:
    settings, rounds = arms[name], []
    layout: _Layout | None = None
    for number in range(1, settings.num_rounds + 1):
        equal = all(arm.at(to) == settings.at(to) for arm in arms.values() for to in range(1, number + 1))
        place = f"round-{number}/" if equal else f"{name}/round-{number}/"
        context = run.of(run.config.refresh_round(settings, number), place)
        layout = _Layout(context, run.config.data.train_split, run, settings, number, layout)
        rounds.append(layout.lay_out())
    return rounds


@dataclass
class _Layout(Judging):
    """The declaration of a round.

    Args:
        context: config of the round; labels begin with the arm's name once the arms differ.
        split: the training split.
        run: config of the refresh, without the changes of the round.
        settings: settings of the arm.
        number: number of the round, from 1.
        before: completed layout of the previous round; None in the first round.
    """

    run: Context
    settings: RefreshConfig
    number: int
    before: _Layout | None

    def __post_init__(self) -> None:
        self.mined = self._mine() if self.context.config.train.num_hard_negatives else None
        #: Training data of the judges' cross-encoder; if it is trained once, those of the first round that uses it.
        self.classifier_data: Judged | None = None
        #: The ranker of the last round that trained a ranker.
        self.last_ranker: Node | None = None
        if self.before is not None:
            self.classifier_data = self.before.classifier_data if self.settings.classifier == "once" else None
            self.last_ranker = self.before.last_ranker

    def lay_out(self) -> Round:
        """Return the round."""
        context, config, system = self.context, self.context.config, f"round-{self.number}"
        names = self.settings.at(self.number).judges
        judges = config.judge.judges if names is None else [config.judge.judge(name) for name in names]
        judges = active_judges(config.judge, judges, config.train.num_hard_negatives > 0)
        verdicts = [self.verdicts(judge) for judge in judges]
        judged = judge_all(context, judges, verdicts, self.mined, self.split)
        trains_ranker = config.train.loss.reads_ranker_scores and config.train.ranker == RANKER
        ranker = self._ranker(judged) if trains_ranker else None
        self.model = self._train(judged, ranker)
        splits = self.settings.evaluate_splits or [config.data.dev_split, *config.data.test_splits]
        runs = {split: search.of_model(context, self.model, system, split) for split in splits}
        return Round(
            self.number,
            config,
            self.model,
            ranker,
            self.mined,
            judged,
            verdicts,
            statistics(context, judged.negatives) if judged.negatives is not None else None,
            index.of_model(context, self.model, system),
            runs,
            {
                split: evaluation(context, split, {system: run}, judge_held_out(context, split, [config.train]))
                for split, run in runs.items()
            },
        )

    def _mine(self) -> Node:
        """Declare candidates: of ``negatives.miner`` in the first round, then of the previous round's model."""
        if self.before is None:
            return Recipe(self.context).candidates(self.split)
        number = self.before.number
        return mined(self.context, f"round-{number}", self.before.search(self.split), self.split, number)

    def search(self, split: str) -> Node:
        """Declare the run of the round's model over a split."""
        return search.of_model(self.context, self.model, f"round-{self.number}", split)

    def candidates(self, judge: Judge) -> Node:
        if self.mined is None:
            raise ConfigError(
                f"refresh.judges: {judge.name} judges hard negatives, and with refresh.num_hard_negatives 0 nothing "
                "is mined; set it to 1 or more, or leave the judge out"
            )
        return self.mined

    def retriever(self) -> Node:
        if self.before is None:
            return untrained(self.context, self.context.config.model, "untrained")
        return self.before.model

    def training_data(self, judge: Judge) -> Judged:
        if self.classifier_data is None:
            self.classifier_data = classifier_data(self, self.mined)
        return self.classifier_data

    def _ranker(self, judged: Judged) -> Node:
        """Declare the round's ranker, trained on the round's judged data."""
        settings, split = self.context.config.ranker, self.context.config.data.dev_split
        start = self.last_ranker if self.settings.at(self.number).start == "last" else None
        dev_run = None
        if settings.chooses_epoch and split:
            dev_run = self.before.search(split) if self.before is not None else Recipe(self.context).ranker_dev()
        self.last_ranker = cross_encoder(
            self.context, settings, judged.negatives, judged.pairs, start, RANKER, dev_run=dev_run
        )
        return self.last_ranker

    def _train(self, judged: Judged, ranker: Node | None) -> Node:
        this, following = self.settings.at(self.number), self.settings.at(self.number + 1)
        start = self.before.model if self.before is not None and this.start == "last" else None
        continued = self.number < self.settings.num_rounds and following.start == "last"
        training = self.context.training().model_copy(
            update={
                "with_optimizer": start is not None and this.optimizer == "kept",
                "keep_optimizer": continued and following.optimizer == "kept",
            }
        )
        if training.train.optimizer.lora is not None and (training.with_optimizer or training.keep_optimizer):
            raise ConfigError(
                f"refresh.optimizer is kept in round {self.number}, but train.optimizer.lora starts each training with "
                "new adapters, which have no moments: set it to fresh"
            )
        if training.train.loss.reads_ranker_scores and ranker is None:
            ranker = Recipe(self.run).scorer(training.train.ranker)
        return declare_training(self.context, "", training, judged, ranker, start=start)
