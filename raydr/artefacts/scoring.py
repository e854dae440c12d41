"""Scoring of pairs: which model, how it is opened on a worker, and the scores that it gives to candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from raydr.artefacts.folds import fold_of_texts
from raydr.console import say
from raydr.data import Corpus, Dataset
from raydr.data.dataset import query_texts
from raydr.distributed.arithmetic import Arithmetic, require_device
from raydr.distributed.pool import Pool
from raydr.models.config import read_config
from raydr.models.encode_config import EncodeConfig
from raydr.noise.candidates import Candidates
from raydr.store import Artifact

if TYPE_CHECKING:
    from raydr.data.corpus import Texts
    from raydr.models.pair_scoring import DualEncoderScorer, FloatArray, IntArray, PairScorer

#: Pairs that are scored together, about: a cross-encoder reads each anew, of which a killed worker loses one range; a
#: retriever's texts are encoded once a range.
PAIRS_READ, PAIRS_ENCODED = 2_000, 20_000


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored: by a ``model`` or a ``cross_encoder``, in an arithmetic; picklable."""

    model: Artifact
    arithmetic: Arithmetic
    num_threads: int | None

    @property
    def is_cross_encoder(self) -> bool:
        return self.model.kind == "cross_encoder"

    @property
    def num_pairs(self) -> int:
        """Pairs that are scored together, about."""
        return PAIRS_READ if self.is_cross_encoder else PAIRS_ENCODED

    @property
    def scale(self) -> float:
        """What scores are multiplied by, so that they are what losses see: a retriever's τ; 1 for a cross-encoder."""
        return 1.0 if self.is_cross_encoder else read_config(self.model.local_folder()).scale

    def tell(self, what: str) -> None:
        """Say in which arithmetic something is scored, and why."""
        how = self.arithmetic
        say(f"{what}: dtype {how.dtype} on {how.device} ({how.reason})")

    def open(self, probabilities: bool = True) -> PairScorer:
        """Load the model, in the process that will use it.

        Args:
            probabilities: of relevance, of a cross-encoder; its log-odds if False. Of a retriever similarities.
        """
        from raydr.models.cross_encoder import CrossEncoderScorer, ProbabilityScorer
        from raydr.models.pair_scoring import DualEncoderScorer

        how = self.arithmetic
        require_device(how.device)
        reads = ProbabilityScorer if probabilities else CrossEncoderScorer
        kind = reads if self.is_cross_encoder else DualEncoderScorer
        return kind(self.model.local_folder(), how.dtype, how.device, how.token_budget, self.num_threads)

    def open_retriever(self) -> DualEncoderScorer:
        """As :meth:`open`, where the model is a retriever."""
        return cast("DualEncoderScorer", self.open())


@dataclass(frozen=True)
class CrossFittedScoring(Scoring):
    """How the pairs of a split are scored that was cut into folds: each by the model that has not seen its query.

    Args:
        others: the models of the folds but the first, which is ``model``.
        folds: the fold of each query.
        data: has the queries.
        split: that was cut.
    """

    others: tuple[Artifact, ...]
    folds: Artifact
    data: Dataset
    split: str

    def open(self, probabilities: bool = True) -> PairScorer:
        each = [Scoring(model, self.arithmetic, self.num_threads) for model in (self.model, *self.others)]
        fold_of = fold_of_texts(self.folds, self.data, self.split)
        return CrossFittedScorer([scorer.open(probabilities) for scorer in each], fold_of)


class CrossFittedScorer:
    """Scores pairs by several models, each query by the one that has not seen it.

    Args:
        scorers: one a fold.
        fold_of: the fold of a query, by its text; the first model scores what is in no fold, which none has seen.
    """

    def __init__(self, scorers: Sequence[PairScorer], fold_of: Mapping[str, int]) -> None:
        self.scorers, self.fold_of = scorers, fold_of

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        fold_P = np.array([self.fold_of.get(query, 0) for query in queries], dtype=np.int64)[query_P]
        scores_P = np.empty(len(query_P), dtype=np.float64)
        for fold, scorer in enumerate(self.scorers):
            mine_P = fold_P == fold
            scores_P[mine_P] = scorer.score(queries, passages, query_P[mine_P], passage_P[mine_P])
        return scores_P


def scoring_of(pool: Pool, model: Artifact, settings: EncodeConfig, arithmetic: Arithmetic) -> Scoring:
    """Scoring with a model, by workers of these settings, for which the arithmetic is resolved."""
    return Scoring(model, arithmetic, pool.num_threads(settings.cpus_per_actor))


class CandidateScores(NamedTuple):
    """What a model says of candidates.

    Args:
        scores_M: of each candidate with its query.
        best_Q: of each query's best scored positive; −inf where it has none. None if nobody asked.
        likeness_M: of each candidate with the positive of its query that it is most like, as a share of that positive's
            similarity with itself, 0 at least. None if nobody asked.
    """

    scores_M: FloatArray
    best_Q: FloatArray | None = None
    likeness_M: FloatArray | None = None


@dataclass(frozen=True)
class PairReader:
    """A model with the texts that it is asked about.

    Args:
        data: has the queries.
        corpus: has the passages.
        split: of the queries.
        scorer: the model, loaded.
    """

    data: Dataset
    corpus: Corpus
    split: str
    scorer: PairScorer

    def scores(self, query_ids: list[str], passage_ids: list[str]) -> FloatArray:
        """Scores, shape (P,), of the pairs (query_ids[i], passage_ids[i]).

        Raises:
            DataError: a query is not in the split, or a passage not in the corpus.
        """
        queries, query_P = np.unique(np.asarray(query_ids, dtype=object), return_inverse=True)
        passages, passage_P = np.unique(np.asarray(passage_ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        asked = query_texts(self.data, self.split, queries.tolist())
        return self.scorer.score(asked, texts, query_P.astype(np.int64), passage_P.astype(np.int64))

    def candidates(
        self, candidates: Candidates, positives: Mapping[str, Sequence[str]], likeness: bool = False
    ) -> CandidateScores:
        """Scores of candidates and of their queries' positives.

        Args:
            candidates: of some queries.
            positives: of each query; a query may have none.
            likeness: whether candidates are compared with the positives too, which a retriever can.
        """
        positive_ids = [positives.get(query_id, ()) for query_id in candidates.query_ids]
        ids = [
            *candidates.table["passage_id"].to_pylist(),
            *(passage_id for those in positive_ids for passage_id in those),
        ]
        passages, passage_P = np.unique(np.asarray(ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        of_positive = np.repeat(np.arange(len(positive_ids)), list(map(len, positive_ids)))
        query_P, passage_P = np.concatenate([candidates.query_M, of_positive]), passage_P.astype(np.int64)
        asked = query_texts(self.data, self.split, candidates.query_ids)
        num, likeness_M = len(candidates.table), None
        if likeness:
            retriever = cast("DualEncoderScorer", self.scorer)
            # Each candidate beside each positive of its query.
            blocks = [np.arange(candidates.offsets[at], candidates.offsets[at + 1]) for at in of_positive]
            candidate_L = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
            positive_L = np.repeat(passage_P[num:], list(map(len, blocks)))
            compared = positive_L, passage_P[candidate_L]
            scores_P, like_L = retriever.score_and_compare(asked, texts, query_P, passage_P, *compared)
            likeness_M = np.zeros(num)
            np.maximum.at(likeness_M, candidate_L, like_L)
        else:
            scores_P = self.scorer.score(asked, texts, query_P, passage_P)
        best_Q = np.full(len(positive_ids), -np.inf)
        np.maximum.at(best_Q, of_positive, scores_P[num:])
        return CandidateScores(scores_P[:num], best_Q, likeness_M)
