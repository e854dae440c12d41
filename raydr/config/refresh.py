"""Settings of refresh rounds. Light to import: it is part of the run's config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raydr.component import Config


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
