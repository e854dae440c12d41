"""The nodes of refresh rounds: train, encode, index, search, mine, judge, train again; laid out without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raydr.artefacts import index, search
from raydr.artefacts.context import Context
from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import evaluation
from raydr.artefacts.model import untrained
from raydr.artefacts.negatives import mined
from raydr.artefacts.negatives_statistics import statistics
from raydr.artefacts.ranker import cross_encoder
from raydr.config.refresh import RefreshConfig
from raydr.config.run import RANKER, RunConfig
from raydr.errors import ConfigError
from raydr.noise.judges.base import Judge
from raydr.pipeline.judging import Judged, VerdictNodes, active_judges, judge_all, judge_training_data
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.training import declare_training, judge_held_out


@dataclass
class Round:
    """The nodes of one round that are looked at afterwards."""

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
        """What the round is about; all else is made for these."""
        return [self.model, *([self.statistics] if self.statistics is not None else []), *self.evaluations.values()]

    def vectors(self) -> list[Node]:
        """Passage vectors and index."""
        return [self.index.inputs["embeddings"], self.index]

    def nodes(self) -> dict[str, Node]:
        """All nodes that lead to it, by key, in order."""
        nodes: dict[str, Node] = {}
        for target in self.targets():
            nodes |= {**target.ancestors(), target.key: target}
        return nodes


@dataclass
class Arm:
    """One refresh."""

    name: str
    settings: RefreshConfig
    rounds: list[Round] = field(default_factory=list)


def lay_out(context: Context) -> list[Arm]:
    """The rounds of every arm of a config; arms share the nodes that are the same.

    Raises:
        ConfigError: a judge is unknown or cannot judge here.
        ModelError: a checkpoint is not there.
    """
    arms = context.config.refresh_arms()
    return [Arm(name, settings, _Arm(context, settings, name, arms).rounds()) for name, settings in arms.items()]


@dataclass
class _Arm:
    context: Context
    settings: RefreshConfig
    name: str
    #: All arms, this one among them.
    arms: Mapping[str, RefreshConfig]
    #: What the cross-encoder of the judges learns from: the candidates of the first round that asks it.
    judge_training_data: Judged | None = None
    #: The cross-encoder of the last round that had one.
    last_ranker: Node | None = None

    def rounds(self) -> list[Round]:
        made: list[Round] = []
        for number in range(1, self.settings.num_rounds + 1):
            made.append(self._round(number, made[-1] if made else None))
        return made

    def _round(self, number: int, last: Round | None) -> Round:
        config = self.context.config.refresh_round(self.settings, number)
        context, system = self.context.of(config, self._place(number)), f"round-{number}"
        split = config.data.train_split
        mined = self._mine(context, number, last) if config.train.num_hard_negatives else None
        judges = self._judges(config, number)
        verdicts = [self._verdicts(context, judge, last, mined) for judge in judges]
        judged = judge_all(context, judges, verdicts, mined, split)
        taught = config.train.loss.reads_ranker_scores
        ranker = self._ranker(context, number, last, judged) if taught and config.train.ranker == RANKER else None
        model = self._train(context, number, last, judged, ranker)
        runs = {eval_split: search.of_model(context, model, system, eval_split) for eval_split in self._splits()}
        return Round(
            number,
            config,
            model,
            ranker,
            mined,
            judged,
            verdicts,
            statistics(context, judged.negatives) if judged.negatives is not None else None,
            index.of_model(context, model, system),
            runs,
            {
                eval_split: evaluation(
                    context, eval_split, {system: run}, judge_held_out(context, eval_split, [config.train])
                )
                for eval_split, run in runs.items()
            },
        )

    def _place(self, number: int) -> str:
        """Where a round stands in lists: under its arm, from where the arms part."""
        together = all(
            settings.at(earlier) == self.settings.at(earlier)
            for settings in self.arms.values()
            for earlier in range(1, number + 1)
        )
        return f"round-{number}/" if together else f"{self.name}/round-{number}/"

    def _splits(self) -> list[str]:
        of_data = self.context.config.data
        return self.settings.evaluate_splits or list(dict.fromkeys([of_data.dev_split, *of_data.test_splits]))

    def _mine(self, context: Context, number: int, last: Round | None) -> Node:
        """Candidates: of ``negatives.miner`` in the first round, of the model of the round before in the others."""
        split = context.config.data.train_split
        if last is None:
            return Recipe(context).candidates(split)
        return mined(context, f"round-{last.number}", self._search(context, last, split), split, last.number)

    def _search(self, context: Context, last: Round, split: str) -> Node:
        """What the model of a round finds for the queries of a split."""
        return search.of_model(
            context.of(context.config, self._place(last.number)), last.model, f"round-{last.number}", split
        )

    def _judges(self, config: RunConfig, number: int) -> Sequence[Judge]:
        names = self.settings.at(number).judges
        judges = config.judge.judges if names is None else [config.judge.judge(name) for name in names]
        return active_judges(config.judge, judges, config.train.num_hard_negatives > 0)

    def _verdicts(self, context: Context, judge: Judge, last: Round | None, mined: Node | None) -> Node:
        if judge.subject == "negatives" and mined is None:
            raise ConfigError(
                f"refresh.judges: {judge.name} judges hard negatives, and with refresh.num_hard_negatives 0 nothing "
                "is mined; set it to 1 or more, or leave the judge out"
            )
        judging = VerdictNodes(
            context,
            context.config.data.train_split,
            mined,
            retriever=lambda: last.model if last else untrained(context, context.config.model, "untrained"),
            judge_training_data=lambda: self._judge_training_data(context, last, mined),
            verdicts_of=lambda other, _: self._verdicts(context, other, last, mined),
        )
        return judging.verdicts(judge)

    def _judge_training_data(self, context: Context, last: Round | None, mined: Node | None) -> Judged:
        """What a judge's cross-encoder learns from: what the round has, or the first one if it is trained once."""
        if self.judge_training_data is not None and self.settings.classifier == "once":
            return self.judge_training_data
        self.judge_training_data = judge_training_data(
            context, mined, lambda judge, _: self._verdicts(context, judge, last, mined)
        )
        return self.judge_training_data

    def _ranker(self, context: Context, number: int, last: Round | None, judged: Judged) -> Node:
        """The round's cross-encoder, on what its judges leave of its candidates."""
        start = self.last_ranker if self.settings.at(number).start == "last" else None
        settings, split = context.config.ranker, context.config.data.dev_split
        dev_run = None
        if settings.chooses_epoch and split:
            dev_run = Recipe(context).ranker_dev() if last is None else self._search(context, last, split)
        self.last_ranker = cross_encoder(
            context, settings, judged.negatives, judged.pairs, start, RANKER, dev_run=dev_run
        )
        return self.last_ranker

    def _train(self, context: Context, number: int, last: Round | None, judged: Judged, ranker: Node | None) -> Node:
        here, then = self.settings.at(number), self.settings.at(number + 1)
        goes_on = last is not None and here.start == "last"
        is_gone_on_with = number < self.settings.num_rounds and then.start == "last"
        own = context.training().model_copy(
            update={
                "with_optimizer": goes_on and here.optimizer == "kept",
                "keep_optimizer": is_gone_on_with and then.optimizer == "kept",
            }
        )
        if own.train.optimizer.lora is not None and (own.with_optimizer or own.keep_optimizer):
            raise ConfigError(
                f"refresh.optimizer is kept around round {number}, and train.optimizer.lora gives each training new "
                "adapters, of which there are no moments: set it to fresh"
            )
        start = last.model if last is not None and goes_on else None
        teacher = context.config.train.ranker
        return declare_training(
            context, "", own, judged, lambda: ranker or Recipe(self.context).scorer(teacher), start=start
        )
