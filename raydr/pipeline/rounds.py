"""Refresh rounds: train, encode, index, search, mine, judge, train again. They are laid out as nodes, then run in turn.

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
    """The nodes of a round that results are read from."""

    number: int
    config: RunConfig
    model: Node
    #: The cross-encoder that the model learns from, if the round trains one.
    ranker: Node | None
    mined: Node | None
    judged: Judged
    verdicts: list[Node]
    #: What counts the candidates that training draws from.
    statistics: Node | None
    #: Over the passage vectors of the round's model.
    index: Node
    runs: dict[str, Node]
    evaluations: dict[str, Node]

    def targets(self) -> list[Node]:
        """Return the model, the statistics of candidates and the evaluations; all else is made for these."""
        return [self.model, *([self.statistics] if self.statistics is not None else []), *self.evaluations.values()]

    def vectors(self) -> list[Node]:
        """Return passage vectors and index."""
        return [self.index.inputs["embeddings"], self.index]

    def nodes(self) -> dict[str, Node]:
        """Return all nodes of the round and those before it, by key, in a valid order."""
        nodes: dict[str, Node] = {}
        for target in self.targets():
            nodes |= {**target.ancestors(), target.key: target}
        return nodes


@dataclass
class Arm:
    """One refresh: its rounds, whether they are finished or not."""

    name: str
    settings: RefreshConfig
    rounds: list[Round]

    @property
    def measure(self) -> str:
        """Label of the measure that selects the best round."""
        return chosen_measure(self.rounds[0].config, self.settings)


@dataclass(eq=False)
class FinishedRounds:
    """The first rounds of an arm, which are finished."""

    arm: Arm
    #: Means of all measures on the dev split, of each round.
    dev: list[dict[str, float]] = field(default_factory=list)

    @property
    def rounds(self) -> list[Round]:
        return self.arm.rounds[: len(self.dev)]

    @property
    def values(self) -> list[float]:
        """The selecting measure of each round."""
        return [means[self.arm.measure] for means in self.dev]

    @property
    def best(self) -> Round:
        """The first round with the highest value."""
        return self.rounds[self.values.index(max(self.values))]

    @property
    def over(self) -> bool:
        """Whether no further round begins."""
        return len(self.dev) == len(self.arm.rounds) or out_of_patience(self.values, self.arm.settings.patience)


def next_rounds(
    arms: Sequence[FinishedRounds], inventory: Inventory, single_rounds: bool = False
) -> Iterator[list[Round]]:
    """Yield the rounds to make next, until each arm is over; the only loop over rounds.

    The caller makes them and comes back: then their results are read, and added to their arms. Arms go on side by side.
    All their rounds are yielded at once, unless the result of a round decides about the next.

    Args:
        arms: the arms, without finished rounds at first.
        inventory: finds what was made.
        single_rounds: yield a single round of each arm, so that the caller can stop after each.
    """
    patient = any(each.arm.settings.patience for each in arms)
    step = 1 if single_rounds or patient else max(len(each.arm.rounds) for each in arms)
    while advancing := [each for each in arms if not each.over]:
        begun = [each.arm.rounds[len(each.dev) :][:step] for each in advancing]
        yield [refresh_round for rounds in begun for refresh_round in rounds]
        for each, rounds in zip(advancing, begun, strict=True):
            each.dev += [_dev_measures(inventory, refresh_round) for refresh_round in rounds]
            if each.over and len(each.dev) < len(each.arm.rounds):
                patience = counted(each.arm.settings.patience or 0, "round")
                best = f"{each.arm.measure} than round {each.best.number}'s"
                say(f"{each.arm.name}: {patience} without a better {best}: stopping")


def _dev_measures(inventory: Inventory, done: Round) -> dict[str, float]:
    result = load_result(inventory.open(done.evaluations[done.config.data.dev_split]))
    return {summary.measure: summary.mean for summary in result.summaries}


def out_of_patience(values: Sequence[float], patience: int | None) -> bool:
    """Return whether the last ``patience`` rounds brought no better value.

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
    """Lay out the rounds of every arm of a config; arms share the nodes that are the same.

    Raises:
        ConfigError: a judge is unknown or cannot judge here.
        ModelError: a checkpoint is not there.
    """
    arms = context.config.refresh_arms()
    return [Arm(name, settings, _lay_out(context, name, arms)) for name, settings in arms.items()]


def _lay_out(run: Context, name: str, arms: Mapping[str, RefreshConfig]) -> list[Round]:
    settings, rounds = arms[name], []
    layout: _Layout | None = None
    for number in range(1, settings.num_rounds + 1):
        together = all(arm.at(to) == settings.at(to) for arm in arms.values() for to in range(1, number + 1))
        place = f"round-{number}/" if together else f"{name}/round-{number}/"
        context = run.of(run.config.refresh_round(settings, number), place)
        layout = _Layout(context, run.config.data.train_split, run, settings, number, layout)
        rounds.append(layout.lay_out())
    return rounds


@dataclass
class _Layout(Judging):
    """Lays out a round.

    Args:
        context: config of the round; labels begin with the arm's name from where arms part.
        split: the training split.
        run: config of the refresh, without the changes of the round.
        settings: settings of the arm.
        number: number of the round, from 1.
        before: layout of the round before, finished; None in the first round.
    """

    run: Context
    settings: RefreshConfig
    number: int
    before: _Layout | None

    def __post_init__(self) -> None:
        self.mined = self._mine() if self.context.config.train.num_hard_negatives else None
        #: What the cross-encoder of judges learns from: the candidates of the first round that asks it, if it is
        #: trained once; and the ranker of the last round that had one.
        self.learnt: Judged | None = None
        self.last_ranker: Node | None = None
        if self.before is not None:
            self.learnt = self.before.learnt if self.settings.classifier == "once" else None
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
        """Declare candidates: of ``negatives.miner`` in the first round, of the model of the round before in others."""
        if self.before is None:
            return Recipe(self.context).candidates(self.split)
        number = self.before.number
        return mined(self.context, f"round-{number}", self.before.search(self.split), self.split, number)

    def search(self, split: str) -> Node:
        """Declare what the round's model finds for the queries of a split."""
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
        if self.learnt is None:
            self.learnt = classifier_data(self, self.mined)
        return self.learnt

    def _ranker(self, judged: Judged) -> Node:
        """Declare the round's cross-encoder, on what its judges leave of its candidates."""
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
        here, then = self.settings.at(self.number), self.settings.at(self.number + 1)
        start = self.before.model if self.before is not None and here.start == "last" else None
        is_gone_on_with = self.number < self.settings.num_rounds and then.start == "last"
        own = self.context.training().model_copy(
            update={
                "with_optimizer": start is not None and here.optimizer == "kept",
                "keep_optimizer": is_gone_on_with and then.optimizer == "kept",
            }
        )
        if own.train.optimizer.lora is not None and (own.with_optimizer or own.keep_optimizer):
            raise ConfigError(
                f"refresh.optimizer is kept around round {self.number}, and train.optimizer.lora gives each training "
                "new adapters, of which there are no moments: set it to fresh"
            )
        if own.train.loss.reads_ranker_scores and ranker is None:
            ranker = Recipe(self.run).scorer(own.train.ranker)
        return declare_training(self.context, "", own, judged, ranker, start=start)
