"""Settings of the judges: which ones, whose scores they read, and how the models that they need are trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

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
