"""Judges over nodes: the model that each asks, their verdicts, and what is left to train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.artefacts import cross_fitting
from raydr.artefacts import prepared as data
from raydr.artefacts.context import Declaring
from raydr.artefacts.cross_fitting import MODEL
from raydr.artefacts.declaration import Node
from raydr.artefacts.judged import filtered, judged
from raydr.artefacts.language_model import asked_verdicts
from raydr.artefacts.model import trained, untrained
from raydr.artefacts.ranker import cross_encoder
from raydr.artefacts.verdicts import verdicts
from raydr.config.judge import JudgeConfig
from raydr.errors import ConfigError
from raydr.noise.judge_models import ClassifierConfig
from raydr.noise.judges.asked import Copy, CrossEncoder, CrossFitted, Embedder, Reader, Retriever, Server
from raydr.noise.judges.base import Judge, SecondJudge
from raydr.training.training import OptionalInputs

#: What judges speak of.
SUBJECTS = ("negatives", "pairs")


@dataclass(frozen=True)
class Judged:
    """What is left to train on.

    Args:
        negatives: candidates with the judges' actions; as they were mined if no judge looks at them; None if there are
            none.
        pairs: the data set without dropped pairs; None if no judge looks at pairs.
    """

    negatives: Node | None
    pairs: Node | None


def speaking(settings: JudgeConfig, judges: Sequence[Judge], on_negatives: bool) -> list[Judge]:
    """The judges that speak, each name once.

    Args:
        settings: where the others stand.
        judges: those that are named; those that they come after come along.
        on_negatives: whether candidates are judged, so that those come along which some of them stand for there.
    """
    chains = [one for judge in judges for one in settings.chain(judge)]
    found = [one for judge in chains for one in (judge, *(judge.beside() if on_negatives else ()))]
    return list({one.name: one for one in found}.values())


def learnt_from(run: Declaring, candidates: Node | None, verdicts_of: Callable[[Judge, str], Node]) -> Judged:
    """What the cross-encoder of judges learns from.

    Args:
        run: the config.
        candidates: of the training split; None if the run mines none.
        verdicts_of: gives what a judge says of a split.
    """
    settings, split = run.config.judge, run.config.data.train_split
    if not settings.classifier.pairs_kept_by:
        return Judged(candidates, None)
    chain = settings.chain(settings.judge(settings.classifier.pairs_kept_by))
    return Judged(candidates, filtered(run, {one.name: verdicts_of(one, split) for one in chain}, split))


def judge_all(
    run: Declaring, judges: Sequence[Judge], verdicts: Sequence[Node], negatives: Node | None, split: str
) -> Judged:
    """Put the verdicts of several judges together."""
    given = list(zip(judges, verdicts, strict=True))
    on_negatives, on_pairs = (
        {judge.name: node for judge, node in given if judge.subject == subject} for subject in SUBJECTS
    )
    if on_negatives and negatives is not None:
        negatives = judged(run, negatives, on_negatives, split)
    return Judged(negatives, filtered(run, on_pairs, split) if on_pairs else None)


@dataclass(frozen=True)
class Judging:
    """Where judges judge the candidates, or the pairs, of a split.

    Args:
        run: the config.
        split: that is judged.
        negatives: what judges of candidates judge.
        retriever: gives what the run judges with.
        learnt_from: gives what a cross-encoder learns from, see :func:`learnt_from`.
        verdicts_of: gives what another judge says of a split, that one comes after.
    """

    run: Declaring
    split: str
    negatives: Node | None
    retriever: Callable[[], Node]
    learnt_from: Callable[[], Judged]
    verdicts_of: Callable[[Judge, str], Node]

    def verdicts(self, judge: Judge) -> Node:
        """What a judge says.

        Raises:
            ConfigError: the judge's model cannot be made for this split.
        """
        settings, earlier = self.run.config.judge, None
        if isinstance(judge, SecondJudge) and judge.after:
            earlier = self.verdicts_of(settings.judge(judge.after), self.split)
        if isinstance(judge.asks(settings), Server):
            assert earlier is not None
            return asked_verdicts(self.run, judge, self.split, earlier)
        negatives = self.negatives if judge.subject == "negatives" else None
        return verdicts(self.run, judge, self.split, negatives, self.reads(judge), earlier)

    def reads(self, judge: Judge) -> dict[str, Any]:
        """What a judge reads beside data and candidates, by role: a model, one a fold with the folds, or margins that
        were cross-fitted for it; nothing if it reads the miner's scores."""
        run, split = self.run, self.split
        asked = judge.asks(run.config.judge)
        match asked:
            case None | Server():
                return {}
            case Retriever():
                return {MODEL: self.retriever()}
            case CrossFitted():
                return {cross_fitting.MARGINS: cross_fitting.margins(run, split)}
            case Embedder():
                return {MODEL: untrained(run, asked.model, asked.name)}
            case CrossEncoder():
                return self._cross_encoders(asked.settings)
            case Reader():
                return {MODEL: cross_encoder(run, asked.settings, None)}
            case Copy():
                if split != run.config.data.train_split:
                    raise ConfigError(
                        f"judge {judge.name} judges the split that its model is trained on, "
                        f"{run.config.data.train_split!r}, not {split!r}"
                    )
                return {MODEL: _copy(run, judge, asked, self.negatives, self.retriever())}

    def _cross_encoders(self, settings: ClassifierConfig) -> dict[str, Any]:
        run, found = self.run, self.learnt_from() if settings.num_epochs else Judged(None, None)
        if settings.num_epochs and settings.num_hard_negatives and found.negatives is None:
            raise ConfigError(
                f"judge.classifier.num_hard_negatives is {settings.num_hard_negatives} and the run mines no "
                "candidates: set it to 0, or a section negatives and train.num_hard_negatives"
            )
        # What is as it came, or was trained on another split, has seen none of the queries.
        if settings.num_folds > 1 and settings.num_epochs and self.split == run.config.data.train_split:
            return cross_fitting.cross_encoders(run, settings, found.negatives, found.pairs)
        return {MODEL: cross_encoder(run, settings, found.negatives, found.pairs)}


def _copy(run: Declaring, judge: Judge, asked: Copy, negatives: Node | None, retriever: Node) -> Node:
    mined = run.config.negatives
    num_candidates = asked.num_candidates or (mined.depth if mined is not None else None)
    if num_candidates is None:
        raise ConfigError(
            f"set judge.{judge.name}.num_candidates: there is no section negatives whose depth would be taken"
        )
    train = {**asked.train, "num_hard_negatives": num_candidates}
    changed = run.training().changed(asked.model, train, f"judge.{judge.name}")
    measured = cross_fitting.margins_of(run, changed)
    return trained(run, asked.name, changed, data.dataset(run), OptionalInputs(negatives, retriever, margins=measured))
