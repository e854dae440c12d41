"""How fast and how large a model is on a device: measured, or carried over from a device's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextSample:
    """Texts of a run as the encoder reads them, from a sample.

    Args:
        mean_tokens: of a text, special tokens included, cut at the maximum length.
        padded_tokens: the same with the padding of the encoder's batches.
        mean_vectors: that the score function reads of a text.
    """

    mean_tokens: float
    padded_tokens: float
    mean_vectors: float = 1.0


@dataclass(frozen=True)
class EncodingRates:
    """What one encoder and one tokenising task do.

    Args:
        passages: the texts that it was tried on.
        queries: the same, as far as they are known.
        dim: of a vector.
        num_parameters: of the model.
        num_learning: of those, adapters included, that training changes.
        tokens_per_second: padded tokens through the encoder.
        texts_per_second: passages that one tokenising task prepares.
        load_seconds: until a worker has started and loaded the model.
        peak_bytes: memory of the worker at its peak; None if it was not tried.
        device: what it ran on, or whose figures these are.
        int8_tokens_per_second: the same of passages, where these are encoded in int8.
    """

    passages: TextSample
    queries: TextSample
    dim: int
    num_parameters: int
    num_learning: int
    tokens_per_second: float
    texts_per_second: float
    load_seconds: float
    peak_bytes: int | None
    device: str
    int8_tokens_per_second: float | None = None


@dataclass(frozen=True)
class TrainingRates:
    """What one worker does.

    Args:
        step_seconds: of its share of a batch, by plain NCE.
        peak_bytes: its memory at its peak; None if it was not tried.
    """

    step_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class SearchRates:
    """What one thread of FAISS does.

    Args:
        products_per_second: inner products of single numbers: queries x vectors x dimensions.
        fill_bytes_per_second: float32 vectors put into an index and written.
    """

    products_per_second: float
    fill_bytes_per_second: float


@dataclass(frozen=True)
class PairRates:
    """What one reader of pairs does with the cross-encoder.

    Args:
        mean_tokens: of a query with a passage, cut at the maximum length.
        padded_tokens: the same with the padding of batches.
        longest_tokens: of the longest pair, to which lists are padded in training.
        num_parameters: of the model.
        tokens_per_second: padded tokens through it.
        load_seconds: until a worker has started and loaded it.
        peak_bytes: memory of the worker at its peak; None if it was not tried.
    """

    mean_tokens: float
    padded_tokens: float
    longest_tokens: float
    num_parameters: int
    tokens_per_second: float
    load_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class RankerRates:
    """What one reader of pairs, and one worker that trains on lists, do with the cross-encoder."""

    reading: PairRates
    training: TrainingRates


@dataclass(frozen=True)
class RunRates:
    """All rates of a run; those of its ranker where it has one."""

    encoding: EncodingRates
    training: TrainingRates
    search: SearchRates
    ranker: RankerRates | None = None


def encoder_flops(num_weights: int, num_layers: int, width: int, mean_tokens: float) -> float:
    """Operations of one token in a transformer encoder's forward pass.

    2 operations a weight of its layers, and for attention 4 · length · width a layer (scores and weighted sum).

    Args:
        num_weights: weights of the layers, without embeddings.
        num_layers: layers.
        width: hidden size.
        mean_tokens: length of a text.

    >>> round(encoder_flops(85_054_464, 12, 768, 137) / 1e6)
    175
    """
    return 2.0 * num_weights + 4.0 * num_layers * width * mean_tokens
