"""Token states computed once, in the place of an encoder that learns: what is trained is what comes after it.

The projection, the learnt codes, the score function, the loss, sampling and evaluation are those of the package. Only
the Hugging Face model is replaced by a table of the states that it had, so that an arm takes seconds.

Artefact ``states``::

    states.npy    float16, (T, H): the last hidden states of all texts, one text after the other
    texts.npz     of each text: the hash of it and its side, sorted; its first state, and how many they are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.live_encoder import LiveEncoder
from raydr.data.corpus import Corpus, hash_strings
from raydr.data.dataset import Dataset
from raydr.data.vector_sets import VectorSets
from raydr.errors import ConfigError, DataError
from raydr.models.config import SIDES, ModelConfig, Side
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.scores.sum_of_max import SumOfMax
from raydr.models.tokens import TextTokenizer, Tokens
from raydr.models.tower import Tower
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building

STATES, TEXTS = "states.npy", "texts.npz"
#: Texts whose padded states are held at once, and states that the first projection is found from.
_CHUNK, _SAMPLE = 1024, 20_000


def make_states(
    making: Building, pool: Pool, dataset: Artifact, corpus: Artifact, *, model: ModelConfig, splits: Sequence[str]
) -> dict[str, Any]:
    """The states of all passages, and of the queries of some splits; the stage of the node.

    Args:
        making: the artefact.
        pool: is not asked: this is done here.
        dataset: whose queries are read.
        corpus: all of it.
        model: checkpoint, layers and lengths; the rest of it plays no part.
        splits: of the queries.
    """
    reads_tokens = {"score": SumOfMax(), "projection": None, "similarity": "dot", "towers": "shared"}
    config = model.model_copy(update=reads_tokens)
    encoder = LiveEncoder(DualEncoder.from_config(config), build_tokenizers(config), torch.float32)
    opened, passages = Dataset(dataset), Corpus(corpus)
    texts = passages.texts(np.arange(len(passages)))
    queries = [text for split in splits for text in opened.queries(split)["text"].to_pylist()]
    sides: dict[Side, tuple[list[str], list[str]]] = {
        "passage": (texts.titles, texts.texts),
        "query": ([""] * len(queries), queries),
    }
    sets, hashes = [], []
    for side, (titles, those) in sides.items():
        hashes.append(_hashes(side, titles, those))
        for start in range(0, len(those), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            told = titles[chunk] if side == "passage" else None
            sets.append(VectorSets.of_padded(encoder.encode(side, told, those[chunk])))
    joined, hash_N = VectorSets.join(sets), np.concatenate(hashes)
    order = np.argsort(hash_N, kind="stable")
    with making.folder.publish(STATES) as path, open(path, "wb") as file:
        np.save(file, joined.vectors_TD)
    with making.folder.publish(TEXTS) as path, open(path, "wb") as file:
        np.savez(file, hash_N=hash_N[order], first_N=joined.offsets[:-1][order], length_N=joined.lengths[order])
    making.record_files()
    return {"texts": len(joined), "states": len(joined.vectors_TD)}


@dataclass(frozen=True)
class TokenStates:
    """The states, and where those of each text are.

    Args:
        states_TH: float16.
        hash_N: of each text and its side, sorted.
        first_N: the first state of each.
        length_N: how many it has.
    """

    states_TH: NDArray[np.float16]
    hash_N: NDArray[np.uint64]
    first_N: NDArray[np.int64]
    length_N: NDArray[np.int64]

    @classmethod
    def of(cls, made: Artifact) -> TokenStates:
        """Those of an artefact."""
        with np.load(made.local(TEXTS), allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in ("hash_N", "first_N", "length_N")}
        return cls(np.load(made.local(STATES), mmap_mode="c", allow_pickle=False), **columns)

    def tokens(self, side: Side, titles: Sequence[str], texts: Sequence[str]) -> Tokens:
        """Of some texts, with the numbers of states in the place of token ids.

        Raises:
            DataError: the states of one are not there.
        """
        wanted = _hashes(side, titles, texts)
        at_N = np.searchsorted(self.hash_N, wanted).clip(max=len(self.hash_N) - 1)
        if (unknown := np.flatnonzero(self.hash_N[at_N] != wanted)).size:
            raise DataError(
                f"the states of {len(unknown)} texts of side {side} are not there, the first is {texts[unknown[0]]!r}"
            )
        lengths, offsets = self.length_N[at_N], np.zeros(len(at_N) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        ids = np.arange(offsets[-1]) + np.repeat(self.first_N[at_N] - offsets[:-1], lengths)
        return Tokens(ids.astype(np.int32), offsets, lengths.astype(np.int32))

    def tokenizers(self) -> dict[Side, TextTokenizer]:
        """What stands for a model's tokenizers."""
        return {side: _StateTokenizer(self, side) for side in SIDES}

    def model(self, config: ModelConfig, seed: int) -> DualEncoder:
        """A model whose encoder looks states up; its projections begin with the states' principal directions.

        Args:
            config: with two towers and a projection.
            seed: of the codes.

        Raises:
            ConfigError: nothing would learn, or both sides the same.
        """
        dim, hidden = config.projected_dim, self.states_TH.shape[1]
        if dim is None or dim > hidden or config.towers != "two":
            raise ConfigError(
                f"with states of {hidden} numbers model.towers must be two and model.projection a width up to that; "
                f"they are {config.towers} and {dim}"
            )
        step = max(1, len(self.states_TH) // _SAMPLE)
        sample_SH = torch.from_numpy(self.states_TH[::step].astype(np.float32))
        directions_HH = torch.linalg.eigh(sample_SH.T @ sample_SH).eigenvectors.flip(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            towers: dict[str, Tower] = {side: Tower(_Lookup(self.states_TH), config, [side]) for side in SIDES}
        for tower in towers.values():
            assert tower.projection is not None
            nn.init.zeros_(tower.projection.bias)
            with torch.no_grad():
                tower.projection.weight.copy_(directions_HH[:, :dim].T)
        return DualEncoder(config, towers)


class _StateTokenizer(TextTokenizer):
    """Texts to the numbers of their states."""

    def __init__(self, states: TokenStates, kind: Side) -> None:
        self.states = states
        self.kind = kind

    @property
    def pad_id(self) -> int:
        return 0

    def __call__(self, titles: list[str] | None, texts: list[str]) -> Tokens:
        return self.states.tokens(self.kind, titles or [""] * len(texts), texts)


class _Lookup(nn.Module):
    """Looks states up as an encoder computes them; has no weights."""

    def __init__(self, states_TH: NDArray[np.float16]) -> None:
        super().__init__()
        self.states_TH = torch.from_numpy(states_TH)
        self.config = SimpleNamespace(hidden_size=states_TH.shape[1], type_vocab_size=0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """States (N, L, H) in float32; those of padding are of some other text."""
        return SimpleNamespace(last_hidden_state=self.states_TH[input_ids].float())


def _hashes(side: str, titles: Sequence[str], texts: Sequence[str]) -> NDArray[np.uint64]:
    return hash_strings([f"{side}\n{title}\n{text}" for title, text in zip(titles, texts, strict=True)])
