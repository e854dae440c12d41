"""Linear heads trained on frozen vectors: what a whole training would show of detectors, in seconds.

Texts are encoded once by the starting checkpoint. A head is a matrix a side, the identity at first, trained by NCE with
in-batch negatives; so a grid over shares and seeds costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, normalize

from experiments.live_encoder import LiveEncoder
from raydr.config.run import RunConfig
from raydr.data.annotations import query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import inject_mismatched
from raydr.data.schema import to_table
from raydr.data.tables import relevant
from raydr.graph.nodes import data
from raydr.graph.session import open_session
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.noise.folds import assign_folds, trained_on
from raydr.noise.margins import Margins
from raydr.noise.perplexity import Perplexities, perplexities
from raydr.seeding import stable_hash64

FloatArray = NDArray[np.float32]
#: Of queries and of passages.
Heads = tuple[torch.nn.Linear, torch.nn.Linear]
#: Of AdamW; heads of two epochs then tell pairs as well as whole trainings do (docs/experiments/detectors.md).
LEARNING_RATE = 3e-4


@dataclass(frozen=True)
class FrozenPairs:
    """The training pairs of a data set without noise, each query with one positive.

    Args:
        qrels: their rows.
        content: hash of each passage's content, by id.
        row_of: the row of each passage's vector, by id.
        query_ND, passage_PD: vectors by the starting checkpoint.
        scale: τ.
    """

    qrels: pa.Table
    content: dict[str, int]
    row_of: dict[str, int]
    query_ND: FloatArray
    passage_PD: FloatArray
    scale: float

    @classmethod
    def of(
        cls, config: RunConfig, dataset: Dataset, corpus: Corpus, rows: NDArray[np.int64] | None = None
    ) -> FrozenPairs:
        """Encode them.

        Args:
            config: whose starting checkpoint encodes.
            dataset: without noise.
            corpus: its passages.
            rows: of the passages that get a vector; of those that are judged if None.
        """
        split, encoder = config.data.train_split, starting_encoder(config)
        qrels = relevant(dataset.qrels(split))
        if rows is None:
            rows = corpus.rows_of(sorted(set(qrels["passage_id"].to_pylist())))
        ids, passages = corpus.ids(rows), corpus.texts(rows)
        return cls(
            qrels,
            dict(zip(ids, corpus.content_hashes(rows).tolist(), strict=True)),
            {one: at for at, one in enumerate(ids)},
            encoder.encode("query", None, query_texts(dataset, split, qrels["query_id"].to_pylist())),
            encoder.encode("passage", passages.titles, passages.texts),
            encoder.model.config.scale,
        )


def starting_encoder(config: RunConfig) -> LiveEncoder:
    """The checkpoint that cross-fitted models start from."""
    model = config.cross_fit.model or config.model
    return LiveEncoder(DualEncoder.from_config(model, config.seed), build_tokenizers(model), torch.float32)


def clean_data(config: RunConfig) -> tuple[Dataset, Corpus]:
    """The data of a run as they were prepared, without noise on purpose."""
    with open_session(config.model_copy(update={"inject_noise": None})) as session:
        dataset, corpus = session.make(data.prepared(session.recipe.run), data.corpus(session.recipe.run))
    return Dataset(dataset), Corpus(corpus)


def identity_heads(width: int) -> Heads:
    """Heads that leave vectors as they are."""
    heads = torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False)
    for head in heads:
        torch.nn.init.eye_(head.weight)
    return heads


def train_heads(
    query_ND: FloatArray, passage_ND: FloatArray, scale: float, batch_size: int, num_epochs: int, seed: int
) -> Heads:
    """The heads of both sides after plain NCE on pairs."""
    torch.manual_seed(seed)
    heads = identity_heads(query_ND.shape[1])
    optimizer = torch.optim.AdamW([head.weight for head in heads], lr=LEARNING_RATE)
    sides = torch.from_numpy(query_ND), torch.from_numpy(passage_ND)
    for _ in range(num_epochs):
        order = torch.randperm(len(query_ND))
        for batch in torch.split(order, batch_size)[: max(1, len(order) // batch_size)]:
            query_QD, passage_QD = (normalize(head(side[batch])) for head, side in zip(heads, sides, strict=True))
            loss = cross_entropy(scale * query_QD @ passage_QD.T, torch.arange(len(batch)))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return heads


@dataclass(frozen=True)
class MeasuredByHeads:
    """Pairs of which a share is mismatched.

    Args:
        cross_fitted: their margins by the heads of the other folds.
        in_sample: perplexities by heads that have learnt all of them; one random pair each.
        wrong_N: the truth.
        fold_heads: those that have not seen each fold.
    """

    cross_fitted: Margins
    in_sample: Perplexities
    wrong_N: NDArray[np.bool_]
    fold_heads: list[Heads]


def measure_by_heads(frozen: FrozenPairs, config: RunConfig, share: float, seed: int) -> MeasuredByHeads:
    """Mismatch a share of the pairs, train heads as ``cross_fit`` says and on all pairs as ``train`` does, and measure.

    Args:
        frozen: the pairs.
        config: ``cross_fit`` and ``train``.
        share: that is mismatched.
        seed: draws them, the folds, and the batches.
    """
    settings, train = config.cross_fit, config.train
    injected = inject_mismatched(frozen.qrels, to_table("negatives", []), frozen.content, share, seed)
    passage_ids = injected.qrels["passage_id"].to_pylist()
    wrong_N = np.array([noise is not None for noise in injected.qrels["noise"].to_pylist()])
    query_ND, passage_ND = frozen.query_ND, frozen.passage_PD[[frozen.row_of[one] for one in passage_ids]]
    _, passage_N = np.unique([frozen.content[one] for one in passage_ids], return_inverse=True)
    order_N = np.array([stable_hash64("folds", seed, at) for at in range(len(wrong_N))], dtype=np.uint64)
    fold_N = assign_folds(np.arange(len(wrong_N)), passage_N, order_N, settings.num_folds)
    rng = np.random.default_rng(stable_hash64("random passages", seed))
    values_N2D = np.empty((len(wrong_N), 2, settings.num_draws))
    fold_heads = []
    for fold in range(settings.num_folds):
        used_N, mine = trained_on(fold, fold_N, passage_N), np.flatnonzero(fold_N == fold)
        heads = train_heads(
            query_ND[used_N], passage_ND[used_N], frozen.scale, train.batch_size, settings.num_epochs, seed
        )
        fold_heads.append(heads)
        scores_MM = score_heads(heads, query_ND[mine], passage_ND[mine], frozen.scale).double().numpy()
        values_N2D[mine] = _measure(scores_MM, passage_N[mine], settings.num_random, settings.num_draws, rng)
    heads = train_heads(query_ND, passage_ND, frozen.scale, train.batch_size, train.num_epochs, seed)
    scores_NN = score_heads(heads, query_ND, passage_ND, frozen.scale).double().numpy()
    learnt_N21 = _measure(scores_NN, passage_N, settings.num_random, 1, rng)
    margins = Margins(
        injected.qrels["query_id"],
        injected.qrels["passage_id"],
        pa.chunked_array([wrong_N]),
        fold_N,
        values_N2D[:, 0],
        values_N2D[:, 1],
    )
    return MeasuredByHeads(margins, Perplexities(learnt_N21[:, 0, 0], learnt_N21[:, 1, 0]), wrong_N, fold_heads)


def score_heads(
    heads: Heads, query_ND: FloatArray, passage_ND: FloatArray, scale: float, normalized: bool = True
) -> torch.Tensor:
    """Of every query with every passage, shape (queries, passages): cosines, or dot products of what heads make."""
    with torch.inference_mode():
        sides = (head(torch.from_numpy(side)) for head, side in zip(heads, (query_ND, passage_ND), strict=True))
        query, passage = (normalize(side) if normalized else side for side in sides)
        return scale * query @ passage.T


def _measure(
    scores_NN: NDArray[np.float64],
    passage_N: NDArray[np.int64],
    num_random: int,
    num_draws: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Perplexity of each pair (the diagonal), and of the random one in its place, for each draw, shape (N, 2, D)."""
    values_N2D = np.empty((len(scores_NN), 2, num_draws))
    _, first = np.unique(passage_N, return_index=True)
    for at, scores_N in enumerate(scores_NN):
        allowed = first[passage_N[first] != passage_N[at]]
        drawn_DM = np.stack([rng.choice(allowed, num_random + 1, replace=False) for _ in range(num_draws)])
        others_DM = scores_N[drawn_DM[:, :-1]]
        values_N2D[at, 0] = perplexities(np.full(num_draws, scores_N[at]), others_DM)
        values_N2D[at, 1] = perplexities(scores_N[drawn_DM[:, -1]], others_DM)
    return values_N2D
