"""The labels of a review: verdicts of judges with their texts, ordered for a warranty or by suspicion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.judged import VERDICTS, read_verdicts
from raydr.artefacts.people_decisions import current_rows
from raydr.artefacts.places import Places
from raydr.config.sections import JudgeConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, positives_of, query_texts, read_split
from raydr.data.tables import of_queries, pairs_of
from raydr.errors import ArtifactError
from raydr.noise.decisions import Decisions, Label, Subject, digest_texts
from raydr.noise.evidence import evidence
from raydr.noise.judges.base import BoolArray, FloatArray, IntArray, Judge, judge_class
from raydr.noise.judges.calibrated import CalibratedJudge
from raydr.noise.judges.people import DecisionsReader
from raydr.noise.warranty import SuspectSets, Warranty, lots_of
from raydr.pipeline.why import artifacts_of
from raydr.store.artifact import Artifact

Order = Literal["sample", "worst", "informative"]
#: Subject, query id, passage id.
_Key = tuple[Subject, str, str]


@dataclass(frozen=True)
class JudgeVerdicts:
    """The verdicts of a judge on a split, in memory.

    Args:
        name: name of the verdicts.
        judge: class of the judge.
        subject: the kind of the judged labels.
        table: query_id, passage_id, score, action.
        probability_N: probability that each label is wrong; None if the judge returns no probabilities.
        warrant: the judge that sets the bound of the warranty.
        data, corpus: current texts of the labels.
    """

    name: str
    judge: type[Judge]
    subject: Subject
    table: pa.Table
    probability_N: FloatArray | None
    warrant: CalibratedJudge
    data: Dataset
    corpus: Corpus
    _rows: dict[Label, int | None] = field(default_factory=dict, init=False)
    """Rows of the decided labels; None if there is no such label, or its texts have changed."""

    @classmethod
    def read(
        cls,
        name: str,
        artifact: Artifact,
        split: str,
        warrants: Mapping[Subject, CalibratedJudge],
        data: Dataset,
        corpus: Corpus,
    ) -> JudgeVerdicts:
        """Read the verdicts of a ``verdicts`` artefact, which must have some on the split."""
        tables, probability_N = read_verdicts(artifact, split)
        judge = judge_class(artifact.manifest.identity.config["judge"])
        subject: Subject = artifact.info["subject"]
        table = pa.concat_tables(tables.values())
        return cls(name, judge, subject, table, probability_N, warrants[subject], data, corpus)

    @cached_property
    def flagged_N(self) -> BoolArray:
        return np.asarray(pc.not_equal(self.table["action"], "keep").to_numpy())

    @cached_property
    def evidence_N(self) -> FloatArray:
        return evidence(self.table["score"].to_numpy(), self.flagged_N, self.probability_N)

    @cached_property
    def sets(self) -> SuspectSets:
        lots_N = lots_of(self.subject, self.table)
        return SuspectSets(self.evidence_N, lots_N, self.warrant.max_right_dropped, self.warrant.confidence)

    def warranty(self, decisions: Decisions, split: str) -> Warranty:
        """Return the warranty of this judge that people's decisions support."""
        settled = self.warrant.settled(decisions, split)
        if new := settled.keys() - self._rows.keys():
            rows = current_rows(self.table, self.data, self.corpus, self.subject, split, new)
            self._rows.update({label: rows.get(label) for label in new})
        decided = {row: not settled[label] for label in settled if (row := self._rows[label]) is not None}
        return self.sets.warrant([*decided], [*decided.values()])

    def ordered(self, order: Order, stage: int) -> IntArray:
        """Return the rows in an order.

        Args:
            order: ``sample``: the order of the warranty; ``worst``: flagged rows by decreasing evidence, then the
                others; ``informative``: the least evidence in either direction first.
            stage: number of warranted sets.
        """
        if order == "sample":
            return self.sets.in_turn(stage)
        if order == "worst":
            return np.lexsort((-self.evidence_N, ~self.flagged_N))
        return np.argsort(np.abs(self.evidence_N), kind="stable")

    def says(self, row: int) -> str:
        """Return the verdict on a label in words."""
        score = f"{self.judge.score_name} {self.table['score'][row].as_py():.4g}"
        if self.probability_N is not None:
            score = f"wrong with probability {self.probability_N[row]:.3f}"
        return f"{self.name}: {score}, {'flagged' if self.flagged_N[row] else 'not flagged'}"


@dataclass(frozen=True)
class ShownLabel:
    """A label to decide on, as the page shows it.

    Args:
        label: the label.
        facts: the judge's verdict in words.
        texts: role, id, title and text of the query, of the passage, and of passages to compare it with.
    """

    label: Label
    facts: str
    texts: tuple[tuple[str, str, str, str], ...]


def find_verdicts(
    places: Places, data: Dataset, split: str, judges: JudgeConfig, only: Sequence[str] = ()
) -> list[JudgeVerdicts]:
    """Find the verdicts for a review: of one judge of pairs and one judge of candidates, or of the named judges.

    Args:
        places: places of the working folder.
        data: the judged data set.
        split: the judged split.
        judges: judges in the order of preference, and the bounds of warranties. Other judges that return
            probabilities come next; judges that read decisions are left out.
        only: names of the judges whose verdicts are all returned; empty for a choice among all judges.

    Raises:
        ArtifactError: there are none.
    """
    candidates, preferred = [], [judge.name for judge in judges.judges]
    rules = [judges.judge(name) for name in ("calibrated", "calibrated_negatives")]
    warrants = {rule.subject: rule for rule in rules if isinstance(rule, CalibratedJudge)}
    corpus = Corpus(places.open("corpus", "corpus"))
    for name, artifact in artifacts_of(places, data)[0]["verdicts"]:
        settings = artifact.manifest.identity.config["judge"]
        judge, rests_on_decisions = settings["name"], issubclass(judge_class(settings), DecisionsReader)
        if not rests_on_decisions and judge in (only or [judge]) and artifact.rows(f"{VERDICTS}/{split}"):
            verdicts = JudgeVerdicts.read(name.partition("/")[2], artifact, split, warrants, data, corpus)
            place = [*preferred, judge].index(judge)
            candidates.append(((place, verdicts.probability_N is None, verdicts.name), verdicts))
    if not candidates:
        raise ArtifactError(
            f"there is nothing to look at in {places.root}: no verdicts of {' or '.join(only) or 'a judge'} on split "
            f"{split!r}; raydr judge CONFIG --judge npc makes some, and so does raydr audit"
        )
    in_order = [verdicts for _, verdicts in sorted(candidates, key=lambda pair: pair[0])]
    first = {verdicts.subject: verdicts for verdicts in reversed(in_order)}
    return in_order if only else [verdicts for verdicts in in_order if first[verdicts.subject] is verdicts]


def queue(
    places: Places, verdicts: Sequence[JudgeVerdicts], split: str, order: Order, limit: int, stages: Sequence[int]
) -> list[ShownLabel]:
    """Return the labels of a review with their texts, the judges in turn, each label once.

    Args:
        places, verdicts, split, order: settings of the review.
        limit: maximal number of labels.
        stages: number of warranted sets of each judge.
    """
    listed = [
        judge_verdicts.ordered(order, stage)[:limit].tolist()
        for judge_verdicts, stage in zip(verdicts, stages, strict=True)
    ]
    chosen: dict[_Key, str] = {}
    for turn in zip_longest(*listed):
        for judge_verdicts, row in zip(verdicts, turn, strict=True):
            if row is not None and len(chosen) < limit:
                [pair] = pairs_of(judge_verdicts.table.slice(row, 1))
                chosen.setdefault((judge_verdicts.subject, *pair), judge_verdicts.says(row))
    ids = list(dict.fromkeys(query_id for _, query_id, _ in chosen))
    data, corpus = verdicts[0].data, verdicts[0].corpus
    queries = dict(zip(ids, query_texts(data, split, ids), strict=True))
    positives, others = positives_of(data, split, ids), _others(places, data, split, ids)
    shown = []
    for (subject, query_id, passage_id), facts in chosen.items():
        answers, query = positives.get(query_id, []), queries[query_id]
        if subject == "pairs":
            better = [other for other in others[query_id] if other[1] not in answers]
            roles = [("labelled as its answer", passage_id), *better[:1]]
        else:
            roles = [("candidate, labelled as no answer", passage_id)]
            roles += [("labelled as its answer", answer) for answer in answers]
        names, passage_ids = zip(*roles, strict=True)
        texts = corpus.texts(corpus.rows_of(passage_ids))
        passages = zip(names, passage_ids, texts.titles, texts.texts, strict=True)
        label = Label(subject, split, query_id, passage_id, digest_texts(query, texts.titles[0], texts.texts[0]))
        shown.append(ShownLabel(label, facts, (("query", query_id, "", query), *passages)))
    return shown


def _others(places: Places, data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return role and id of other passages that may be right: the mined negatives, best first."""
    artifacts, _ = artifacts_of(places, data)
    others: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, artifact in artifacts["negatives"]:
        mined = of_queries(read_split(artifact, "negatives", split), query_ids).sort_by("rank")
        for query_id, passage_id in pairs_of(mined):
            others[query_id].append((f"best of {name.partition('/')[2]}", passage_id))
    return others
