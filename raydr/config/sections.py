"""Settings of judges and the models that they need, of refresh rounds, and of planning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raydr.component import Config, Pluggable, build
from raydr.errors import ConfigError
from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig, SieveConfig
from raydr.noise.judges.asked import CrossEncoder
from raydr.noise.judges.base import Judge, SecondJudge
from raydr.noise.judges.people import PEOPLE

#: Who judges the pairs of a run whose config has no judges, and the candidates of one that mines some.
PAIRS_JUDGE, NEGATIVES_JUDGE = "npc", "margin"


class JudgeConfig(Config):
    """What ``raydr judge`` does. Scores are made with the workers and the arithmetic of the section ``encode``."""

    judges: list[Annotated[Judge, Pluggable()]] = []
    """The judges, in order; each gives its own verdicts, which are then put together."""

    model: str = "trained"
    """The model of the working folder that judges of the kind ``retriever`` and judges of pairs ask."""

    scores: Literal["model", "miner"] = "model"
    """``model``: that model's similarity; ``miner``: the scores that the candidates were mined with (for
    ``margin``)."""

    guide: ModelConfig = ModelConfig()
    """The embedding model that the judge ``guide`` asks."""

    sieve: SieveConfig = SieveConfig()
    classifier: ClassifierConfig = ClassifierConfig()

    @model_validator(mode="after")
    def _names_differ(self) -> JudgeConfig:
        names = [judge.name for judge in self.judges]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"judges: {', '.join(repeated)} is there more than once; verdicts are told apart by the judge's name"
            )
        return self

    @model_validator(mode="after")
    def _each_follows_an_earlier_judge(self) -> JudgeConfig:
        for at, judge in enumerate(self.judges):
            if not isinstance(judge, SecondJudge) or not judge.after:
                continue
            earlier = [
                other.name for other in self.judges[:at] if other.subject == judge.subject and other.name not in PEOPLE
            ]
            if judge.after not in earlier:
                raise ValueError(
                    f"judges: {judge.name} comes after {judge.after!r}, which is no judge of {judge.subject} that "
                    f"stands before it in the list; there is {', '.join(earlier) or 'none'}"
                )
        return self

    @model_validator(mode="after")
    def _cross_encoder_learns_from_what_others_keep(self) -> JudgeConfig:
        keeper = self.classifier.pairs_kept_by
        if not keeper:
            return self
        try:
            chain = self.chain(self.judge(keeper))
        except ConfigError as error:
            raise ValueError(f"classifier.pairs_kept_by: {error}") from None
        wrong = "judges candidates" if chain[-1].subject != "pairs" else ""
        if any(isinstance(link.asks(self), CrossEncoder) for link in chain):
            wrong = "rests on what the cross-encoder says that is to learn"
        if wrong:
            raise ValueError(
                f"classifier.pairs_kept_by is {keeper!r}, which {wrong}; expected a judge of pairs such as npc"
            )
        reads_pairs = [
            judge.name
            for judge in self.judges
            if judge.subject == "pairs" and isinstance(judge.asks(self), CrossEncoder)
        ]
        if reads_pairs and self.classifier.num_epochs and self.classifier.num_folds == 1:
            raise ValueError(
                f"classifier.pairs_kept_by is {keeper!r} and num_folds 1: {reads_pairs[0]} would ask a cross-encoder "
                f"that has learnt which of the pairs {keeper} keeps; set num_folds to 2 or more"
            )
        return self

    def chain(self, judge: Judge) -> list[Judge]:
        """Return a judge after the judges that it follows, in order."""
        before = judge.after if isinstance(judge, SecondJudge) else ""
        return [*(self.chain(self.judge(before)) if before else ()), judge]

    def judge(self, name: str) -> Judge:
        """Return the judge of that name with its settings, or with the defaults if it is not in the list.

        Raises:
            ConfigError: there is no such judge.
        """
        chosen = [judge for judge in self.judges if judge.name == name]
        return chosen[0] if chosen else build(Judge, name)


class RoundChanges(Config):
    """What one round does otherwise than the run's sections and the section ``refresh`` say."""

    negatives: dict[str, Any] = {}
    """Changes to the section ``negatives``: another window, another depth."""

    train: dict[str, Any] = {}
    """Changes to the section ``train``: other negatives a query, another mixture, another loss."""

    ranker: dict[str, Any] = {}
    """Changes to the section ``ranker``, where the loss of ``train`` learns from it."""

    judges: list[str] | None = None
    start: Literal["last", "scratch"] | None = None
    optimizer: Literal["fresh", "kept"] | None = None


class RefreshConfig(Config):
    """Rounds of training and mining: train, encode, index, search, mine, judge, train again.

    The first round mines with ``negatives.miner`` and judges with the untrained model; each later one does both with
    the model of the round before it.
    """

    num_rounds: int = Field(default=3, ge=1)
    """Rounds of training, encoding, searching and mining."""

    num_hard_negatives: int = Field(default=1, ge=0)
    """Mined negatives drawn for each query and epoch, where ``train.num_hard_negatives`` is 0; with 0 here too no round
    mines any."""

    judges: list[str] | None = None
    """Judges of every round's candidates or pairs, by name; those of ``judge.judges`` if null."""

    start: Literal["last", "scratch"] = "last"
    """Where a round's training starts: from the model of the round before, or from ``model.checkpoint``. The ranker's,
    where the loss learns from it, likewise: from the last round that had one, or from its checkpoint."""

    optimizer: Literal["fresh", "kept"] = "fresh"
    """Whether a round that starts from the last model goes on with its optimiser's moments."""

    classifier: Literal["once", "each_round"] = "once"
    """When the cross-encoder of judges (``judge.classifier``) is trained: once, on candidates and kept pairs of the
    first round that asks it; or in each round, on those of that round."""

    evaluate_splits: list[str] = []
    """Splits that are searched and evaluated after each round; the dev split and the test splits if empty."""

    measure: str = ""
    """The measure on the dev split that says which round is best; the first of ``evaluate.measures`` if empty."""

    patience: int | None = Field(default=None, ge=1)
    """Rounds without a better dev measure after which no further one is begun; all are done if null."""

    check: Literal["versions", "checksums"] = "versions"
    """What is compared of finished artefacts on an object store before a refresh goes on: ``versions`` takes a listing
    each (sizes, and ETags or times), and reads what was written again since; ``checksums`` has workers read all bytes
    (64 GB a round at 21 million passages). Local files are read in any case."""

    keep_vectors: int | None = Field(default=None, ge=1)
    """Rounds, counted from the last, whose passage vectors and indexes are kept; all if null. Models, runs, negatives
    and verdicts always stay."""

    rounds: dict[Annotated[int, Field(ge=1)], RoundChanges] = {}
    """By number, from 1."""

    arms: dict[str, dict[str, Any]] = {}
    """Refreshes to compare, by name: what differs in this section. Rounds that agree up to their end are made once."""

    def at(self, number: int) -> RoundChanges:
        """Return the changes of a round, with the section's values where the round has none."""
        own = self.rounds.get(number) or RoundChanges()
        shared = {name: getattr(self, name) for name in ("judges", "start", "optimizer")}
        return own.model_copy(update={name: value for name, value in shared.items() if getattr(own, name) is None})

    @field_validator("arms")
    @classmethod
    def _numbered_rounds(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Convert the numbers of rounds to integers: JSON, as which a config is stored, has keys of text only."""

        def number(key: Any) -> Any:
            return int(key) if isinstance(key, str) and key.isdecimal() else key

        return {
            name: changes | {"rounds": {number(key): value for key, value in changes["rounds"].items()}}
            if isinstance(changes.get("rounds"), dict)
            else changes
            for name, changes in arms.items()
        }

    @model_validator(mode="after")
    def _rounds_exist(self) -> RefreshConfig:
        beyond = [number for number in self.rounds if number > self.num_rounds]
        if beyond:
            raise ValueError(f"rounds: there is no round {beyond[0]}, num_rounds is {self.num_rounds}")
        if "arms" in {key for changes in self.arms.values() for key in changes}:
            raise ValueError("arms: an arm has no arms of its own")
        return self


class Prices(Config):
    """What an hour costs."""

    cpu_hour: float = Field(default=0, ge=0)
    """Of one CPU."""

    gpu_hour: float = Field(default=0, ge=0)
    """Of one GPU."""

    currency: str = "USD"
    """Printed beside the sums."""


class ConfirmAbove(Config):
    """What a verb may spend without ``--yes``, by the forecast that ``raydr plan`` has left; null: any amount."""

    gpu_hours: float | None = Field(default=100, ge=0)
    """GPUs held, times hours."""

    disk_gib: float | None = Field(default=1000, ge=0)
    """GiB written to the working folder."""


class PlanConfig(Config):
    """How ``raydr plan`` estimates, and what its forecast may be before a verb asks."""

    sample_passages: int = Field(default=4000, ge=10)
    """Passages that are read for the estimate, spread evenly over the corpus."""

    probe_seconds: float = Field(default=6, gt=0)
    """Seconds that the model is tried in encoding, and again in training."""

    num_passages: int | None = Field(default=None, ge=1)
    """A corpus of so many passages, like those of the prepared one, instead of the prepared one."""

    network_gbits: float = Field(default=10, gt=0)
    """Gbit/s between two machines that train together."""

    workers_per_machine: int = Field(default=1, ge=1)
    """Training workers on one machine: they send each other gradients without the network."""

    prices: Prices = Prices()

    confirm_above: ConfirmAbove | None = ConfirmAbove()
    """Nothing is asked if null, as with ``--yes``."""
