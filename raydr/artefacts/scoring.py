"""Scoring of pairs and candidates by a retriever or a cross-encoder."""

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

#: Approximate pairs of a task. A cross-encoder reads each pair, and a killed worker loses the task; a retriever
#: encodes each text once per task.
PAIRS_READ, PAIRS_ENCODED = 2_000, 20_000


@dataclass(frozen=True)
class Scoring:
    """A ``model`` or ``cross_encoder`` that scores pairs, with device and dtype; picklable."""

    model: Artifact
    arithmetic: Arithmetic
    num_threads: int | None

    @property
    def is_cross_encoder(self) -> bool:
        return self.model.kind == "cross_encoder"

    @property
    def num_pairs(self) -> int:
        """Approximate pairs of a task."""
        return PAIRS_READ if self.is_cross_encoder else PAIRS_ENCODED

    @property
    def scale(self) -> float:
        """Factor from scores to the logits of losses: a retriever's scale; 1 for a cross-encoder."""
        return 1.0 if self.is_cross_encoder else read_config(self.model.local_folder()).scale

    def tell(self, what: str) -> None:
        """Print device and dtype of the scoring, with their reason."""
        how = self.arithmetic
        say(f"{what}: dtype {how.dtype} on {how.device} ({how.reason})")

    def open(self, probabilities: bool = True) -> PairScorer:
        """Load the model into this process.

        Args:
            probabilities: whether a cross-encoder returns probabilities of relevance; otherwise log-odds. A retriever
                returns similarities.
        """
        from raydr.models.cross_encoder import CrossEncoderScorer, ProbabilityScorer
        from raydr.models.pair_scoring import DualEncoderScorer

        how = self.arithmetic
        require_device(how.device)
        reads = ProbabilityScorer if probabilities else CrossEncoderScorer
        kind = reads if self.is_cross_encoder else DualEncoderScorer
        return kind(self.model.local_folder(), how.dtype, how.device, how.token_budget, self.num_threads)

    def open_retriever(self) -> DualEncoderScorer:
        """Load the model, which must be a retriever."""
        return cast("DualEncoderScorer", self.open())


@dataclass(frozen=True)
class CrossFittedScoring(Scoring):
    """Scoring of a split by folds: a pair is scored by the model that was not trained on its query.

    Args:
        others: models of the second and further folds; ``model`` is that of the first.
        folds: fold of each query.
        data: data set of the queries.
        split: split with the folds.
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
    """Scorer of pairs by the model that was not trained on their query.

    Args:
        scorers: scorer of each fold.
        fold_of: fold by text of the query; the first scorer scores queries without a fold.
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
    """Return the scoring by a model on the workers of a pool."""
    return Scoring(model, arithmetic, pool.num_threads(settings.cpus_per_actor))


class CandidateScores(NamedTuple):
    """Scores of candidates.

    Args:
        scores_M: score of each candidate with its query.
        best_Q: highest score of a query's positives; −inf without a positive. None if not computed.
        likeness_M: largest similarity of a candidate to a positive of its query, divided by that positive's similarity
            to itself, at least 0. None if not computed.
    """

    scores_M: FloatArray
    best_Q: FloatArray | None = None
    likeness_M: FloatArray | None = None


@dataclass(frozen=True)
class PairReader:
    """A loaded model, with the texts that it scores.

    Args:
        data: data set of the queries.
        corpus: passages.
        split: split of the queries.
        scorer: loaded model.
    """

    data: Dataset
    corpus: Corpus
    split: str
    scorer: PairScorer

    def scores(self, query_ids: list[str], passage_ids: list[str]) -> FloatArray:
        """Return the scores of the pairs (query_ids[i], passage_ids[i]), shape (P,).

        Raises:
            DataError: a query is not in the split, or a passage not in the corpus.
        """
        queries, query_P = np.unique(np.asarray(query_ids, dtype=object), return_inverse=True)
        passages, passage_P = np.unique(np.asarray(passage_ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        query_list = query_texts(self.data, self.split, queries.tolist())
        return self.scorer.score(query_list, texts, query_P.astype(np.int64), passage_P.astype(np.int64))

    def candidates(
        self, candidates: Candidates, positives: Mapping[str, Sequence[str]], likeness: bool = False
    ) -> CandidateScores:
        """Score candidates and the positives of their queries.

        Args:
            candidates: candidates of some queries.
            positives: positives by query; a query may have none.
            likeness: whether to compare candidates with positives, which needs a retriever.
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
        query_list = query_texts(self.data, self.split, candidates.query_ids)
        num, likeness_M = len(candidates.table), None
        if likeness:
            retriever = cast("DualEncoderScorer", self.scorer)
            # Every combination of candidate and positive of a query.
            blocks = [np.arange(candidates.offsets[at], candidates.offsets[at + 1]) for at in of_positive]
            candidate_L = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
            positive_L = np.repeat(passage_P[num:], list(map(len, blocks)))
            compared = positive_L, passage_P[candidate_L]
            scores_P, like_L = retriever.score_and_compare(query_list, texts, query_P, passage_P, *compared)
            likeness_M = np.zeros(num)
            np.maximum.at(likeness_M, candidate_L, like_L)
        else:
            scores_P = self.scorer.score(query_list, texts, query_P, passage_P)
        best_Q = np.full(len(positive_ids), -np.inf)
        np.maximum.at(best_Q, of_positive, scores_P[num:])
        return CandidateScores(scores_P[:num], best_Q, likeness_M)
