"""Settings of judges and their models, of refresh rounds, and of planning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raydr.component import Config, Pluggable, build
from raydr.errors import ConfigError
from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig, SieveConfig
from raydr.noise.judges.asked import CrossEncoder
from raydr.noise.judges.base import Judge, SecondJudge
from raydr.noise.judges.people import PEOPLE, DecisionsReader

#: Default judges of pairs, and of mined candidates.
PAIRS_JUDGE, NEGATIVES_JUDGE = "npc", "margin"


class JudgeConfig(Config):
    """Settings of ``raydr judge``. Scores are computed with workers and arithmetic of the section ``encode``."""

    judges: list[Annotated[Judge, Pluggable()]] = []
    """Judges in order; their verdicts are combined."""

    model: str = "trained"
    """Retriever whose scores judges read: ``trained``, ``untrained``, or the name of a model of the working folder."""

    scores: Literal["model", "miner"] = "model"
    """Scores that the judge ``margin`` reads: ``model`` for similarities by ``judge.model``, ``miner`` for those of the
    run that candidates were mined from."""

    guide: ModelConfig = ModelConfig()
    """Embedding model of the judge ``guide``."""

    sieve: SieveConfig = SieveConfig()
    classifier: ClassifierConfig = ClassifierConfig()

    @model_validator(mode="after")
    def _names_differ(self) -> JudgeConfig:
        names = [judge.name for judge in self.judges]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"judges: {', '.join(repeated)} is listed more than once; a judge's name identifies its verdicts"
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
    def _decisions_lie_in_a_single_file(self) -> JudgeConfig:
        files = {judge.name: judge.file for judge in self._decisions_readers()}
        if len(set(files.values())) > 1:
            named = ", ".join(f"{name} reads {file or 'that of the working folder'}" for name, file in files.items())
            raise ValueError(
                f"judges: {named}; raydr review writes a single file of decisions: set the same file for all"
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
            wrong = "itself asks the cross-encoder that trains on these pairs"
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
                f"that was trained on the pairs that {keeper} keeps; set num_folds to 2 or more"
            )
        return self

    def chain(self, judge: Judge) -> list[Judge]:
        """Return a judge after the judges that it follows, in order."""
        before = judge.after if isinstance(judge, SecondJudge) else ""
        return [*(self.chain(self.judge(before)) if before else ()), judge]

    def judge(self, name: str) -> Judge:
        """Return the judge of a name with its settings, or with the defaults if it is not in the list.

        A judge of decisions that is not in the list reads the file of those in the list.

        Raises:
            ConfigError: no judge has this name.
        """
        chosen = [judge for judge in self.judges if judge.name == name]
        if chosen:
            return chosen[0]
        judge, readers = build(Judge, name), self._decisions_readers()
        if readers and isinstance(judge, DecisionsReader):
            return judge.model_copy(update={"file": readers[0].file})
        return judge

    def _decisions_readers(self) -> list[DecisionsReader]:
        return [judge for judge in self.judges if isinstance(judge, DecisionsReader)]


class RoundChanges(Config):
    """Changes of a round to sections of the run and to the section ``refresh``."""

    negatives: dict[str, Any] = {}
    """Changes to the section ``negatives``, such as another window or depth."""

    train: dict[str, Any] = {}
    """Changes to the section ``train``, such as another number of negatives or another loss."""

    ranker: dict[str, Any] = {}
    """Changes to the section ``ranker``, if the loss of ``train`` learns from the ranker."""

    judges: list[str] | None = None
    start: Literal["last", "scratch"] | None = None
    optimizer: Literal["fresh", "kept"] | None = None


class RefreshConfig(Config):
    """Rounds of training and mining: train, encode, index, search, mine, judge, train again.

    The first round mines with ``negatives.miner`` and judges with the untrained model; each later round does both with
    the model of the previous round.
    """

    num_rounds: int = Field(default=3, ge=1)
    """Number of rounds of training, encoding, searching and mining."""

    num_hard_negatives: int = Field(default=1, ge=0)
    """Mined negatives drawn for each query and epoch, if ``train.num_hard_negatives`` is 0. If both are 0, no round
    mines."""

    judges: list[str] | None = None
    """Names of the judges of every round's candidates or pairs; ``judge.judges`` if null."""

    start: Literal["last", "scratch"] = "last"
    """Start of a round's training: the model of the previous round, or ``model.checkpoint``. A ranker that the loss
    learns from starts from the last ranker of earlier rounds, or from its checkpoint."""

    optimizer: Literal["fresh", "kept"] = "fresh"
    """Whether a round that starts from the last model keeps the moments of its optimiser."""

    classifier: Literal["once", "each_round"] = "once"
    """Training of the cross-encoder of judges (``judge.classifier``): once, on candidates and kept pairs of the first
    round that asks it; or in each round, on candidates and kept pairs of this round."""

    evaluate_splits: list[str] = []
    """Splits that are searched and evaluated after each round; the dev split and the test splits if empty."""

    measure: str = ""
    """Measure on the dev split that chooses the best round; the first of ``evaluate.measures`` if empty."""

    patience: int | None = Field(default=None, ge=1)
    """Rounds without a better dev measure after which no further round begins; all rounds run if null."""

    check: Literal["versions", "checksums"] = "versions"
    """Check of finished artefacts on an object store before a refresh continues: ``versions`` takes a listing each
    (sizes, and ETags or times), and reads files that were written again; with ``checksums`` workers read all bytes (64
    GB a round at 21 million passages). Local files are always read."""

    keep_vectors: int | None = Field(default=None, ge=1)
    """Number of last rounds whose vectors and indexes are kept; all if null. Models, runs, negatives and verdicts
    always stay."""

    rounds: dict[Annotated[int, Field(ge=1)], RoundChanges] = {}
    """Changes of rounds, by number from 1."""

    arms: dict[str, dict[str, Any]] = {}
    """Refreshes to compare: changes to this section, by name. Rounds that are equal up to their end are made once."""

    def at(self, number: int) -> RoundChanges:
        """Return the changes of a round, with the section's values where the round has none."""
        own = self.rounds.get(number) or RoundChanges()
        shared = {name: getattr(self, name) for name in ("judges", "start", "optimizer")}
        return own.model_copy(update={name: value for name, value in shared.items() if getattr(own, name) is None})

    @field_validator("arms")
    @classmethod
    def _numbered_rounds(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Convert the numbers of rounds to integers; a config is stored as JSON, which has only text keys."""

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
        if "comparison" in self.arms:
            raise ValueError("arms: comparison is the name of the evaluation of all arms; give the arm another")
        return self


class Prices(Config):
    """Prices of an hour."""

    cpu_hour: float = Field(default=0, ge=0)
    """Price of a CPU for an hour."""

    gpu_hour: float = Field(default=0, ge=0)
    """Price of a GPU for an hour."""

    currency: str = "USD"
    """Currency of the prices, printed beside the sums."""


class ConfirmAbove(Config):
    """Limits of a verb without ``--yes``, compared with the last forecast of ``raydr plan``; null: no limit."""

    gpu_hours: float | None = Field(default=100, ge=0)
    """Number of GPUs times hours."""

    disk_gib: float | None = Field(default=1000, ge=0)
    """GiB written to the working folder."""


class PlanConfig(Config):
    """Settings of ``raydr plan``, and limits of its forecast above which a verb asks for confirmation."""

    sample_passages: int = Field(default=4000, ge=10)
    """Passages that are read for the estimate, spread evenly over the corpus."""

    probe_seconds: float = Field(default=6, gt=0)
    """Seconds for which the model is tried in encoding, and again in training."""

    num_passages: int | None = Field(default=None, ge=1)
    """Number of passages of a planned corpus, similar to the prepared passages; the prepared corpus if null."""

    network_gbits: float = Field(default=10, gt=0)
    """Network bandwidth in Gbit/s between two machines that train together."""

    workers_per_machine: int = Field(default=1, ge=1)
    """Training workers of a machine, which exchange gradients without the network."""

    prices: Prices = Prices()

    confirm_above: ConfirmAbove | None = ConfirmAbove()
    """Limits of the forecast; if null, verbs never ask, as with ``--yes``."""
