"""Encode passages and queries: tokenising tasks feed encoders.

The unit of work is a part of the corpus (or of a split's queries): one task tokenises it, one encoder encodes it
and writes one file. Which worker does it changes nothing, so an interrupted encoding goes on where it was and
ends with the same bytes.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.artefacts import Context, Node, artefact, encoders
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.quantized import quantized
from raydr.component import Neutral
from raydr.console import detail, say
from raydr.data.embeddings import Encodings, VectorSets, dim_of, to_embedding_table
from raydr.data.parts import partition_of
from raydr.data.tables import read_arrow
from raydr.distributed.arithmetic import Arithmetic, require_device
from raydr.distributed.parts import feed_parts, part_batch, write_table
from raydr.distributed.pool import Batch, Feed, Pool
from raydr.errors import ModelError
from raydr.models.config import Side
from raydr.models.encode_config import EncodeConfig
from raydr.models.tokens import Tokens
from raydr.store import Artifact, Building, Folder

#: ``module:callable`` that makes the tokenizer from (model folder, side).
TOKENIZER = "raydr.models.dual_encoder:load_tokenizer"
#: ``module:callable`` that makes the encoder, as :class:`raydr.models.inference.InferenceEncoder` does.
ENCODER = "raydr.models.inference:InferenceEncoder"


@dataclass(frozen=True)
class Job:
    """Inputs and settings of an encoding, for its workers; picklable."""

    model: Artifact
    #: The corpus or data set.
    texts: Artifact
    #: Names of the parts to encode, in order; output part i encodes part i.
    parts: tuple[str, ...]
    output: Folder
    side: Side
    arithmetic: Arithmetic
    num_threads: int | None
    tokenizer: str
    encoder: str
    #: The model's encoder in int8; None without int8.
    quantized: Artifact | None = None


@functools.lru_cache(maxsize=2)
def _load_tokenizer(factory: str, model: Folder, kind: str, fingerprint: str, side: Side) -> Any:
    return resolve_name(factory)(Artifact.open(model, kind).local_folder(), side)


def output_name(part: int) -> str:
    """
    >>> output_name(3)
    'part-00003.arrow'
    """
    return f"part-{part:05d}.arrow"


def tokenize_part(batch: Batch, job: Job) -> Batch:
    """Tokenise the part that the batch names, into a row of flat token arrays."""
    table = read_arrow(job.texts.local(job.parts[int(batch["part"][0])]))
    if job.num_threads is not None:
        # Workers tokenise with a thread each. In this process "true" would make forked children of the caller hang.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = _load_tokenizer(job.tokenizer, job.model.folder, job.model.kind, job.model.fingerprint, job.side)
    titles = table.column("title").to_pylist() if job.side == "passage" else None
    tokens = tokenizer(titles, table.column("text").to_pylist())
    ids = np.empty(1, dtype=object)
    ids[0] = _packed(table.column(0).combine_chunks())
    return {"part": batch["part"], "text_ids": ids, **tokens.to_arrow()}


def _packed(ids: pa.Array) -> NDArray[np.uint8]:
    """Pack ids into bytes that travel with the tokens, so that the encoder need not read the texts."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("id", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([ids], names=["id"]))
    return np.frombuffer(sink.getvalue(), dtype=np.uint8)


def _unpacked(packed: NDArray[np.uint8]) -> pa.Array:
    return pa.ipc.open_stream(pa.py_buffer(np.ascontiguousarray(packed))).read_all().column(0).combine_chunks()


class EncodeParts:
    """Worker that holds the encoder; a call encodes a part and writes it.

    Two threads call it, so that a part is encoded while the previous part is written.
    """

    #: Concurrent calls.
    calls_at_once = 2

    def __init__(self, job: Job) -> None:
        require_device(job.arithmetic.device)
        self.job = job
        model, how = job.model.local_folder(), job.arithmetic
        in_int8 = {"quantized": job.quantized.local_folder()} if job.quantized is not None else {}
        self.encoder = resolve_name(job.encoder)(
            model, job.side, how.dtype, how.device, how.token_budget, job.num_threads, **in_int8
        )
        self._encoding = threading.Lock()

    def __call__(self, batch: Batch) -> Batch:
        part = int(batch["part"][0])
        tokens, ids = Tokens.from_arrow(batch), _unpacked(batch["text_ids"][0])
        with self._encoding:
            vectors = self.encoder.encode(tokens)
        finite = finite_texts(vectors)
        if not finite.all():
            row, job = int(np.flatnonzero(~finite)[0]), self.job
            raise ModelError(
                f"{job.parts[part]} of {job.texts.folder}: the vector of {ids[row].as_py()!r} (row {row}) is not "
                f"finite, and so are {int((~finite).sum())} of {len(finite)}; expected numbers within ±65504. The "
                f"model at {job.model.folder} is broken, or its scores overflow float16: try encode.dtype=float32 or "
                "similarity cosine"
            )
        name = output_name(part)
        made = write_table(self.job.output, name, to_embedding_table(ids, vectors))
        counts = {"tokens": tokens.num_tokens, "truncated": tokens.num_truncated}
        return part_batch(name, made, **counts)


def finite_texts(vectors: Encodings) -> NDArray[np.bool_]:
    """Return whether all numbers of each text are finite, shape (N,)."""
    if isinstance(vectors, VectorSets):
        wrong_T = ~np.isfinite(vectors.vectors_TD).all(axis=1)
        texts = np.searchsorted(vectors.offsets, np.flatnonzero(wrong_T), side="right") - 1
        return ~np.isin(np.arange(len(vectors)), texts)
    return np.asarray(np.isfinite(vectors).all(axis=1))


def passages(run: Context, model: Node, name: str) -> Node:
    """Return the node of the vectors of all passages."""
    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    in_int8 = settings.dtype == "int8"
    return encode_texts.node(
        run.label("encode", name, "passages"),
        model=model,
        corpus=declare_corpus(run),
        quantized=quantized(run, model, name) if in_int8 else None,
        settings=settings,
        arithmetic=arithmetic.in_int8() if in_int8 else arithmetic,
        demand=encoders(run.config),
    )


def queries(run: Context, model: Node, name: str, split: str) -> Node:
    """Return the node of the vectors of a split's queries."""
    settings = run.config.encode
    return encode_texts.node(
        run.label("encode", name, split),
        model=model,
        dataset=declare_dataset(run),
        split=split,
        settings=settings,
        arithmetic=run.facts.encoding(settings),
        demand=encoders(run.config),
    )


def _num_texts(of: Any) -> int:
    return int(of.dataset.rows(f"queries/{of.split}") if of.split else of.corpus.rows("passages"))


@artefact("embeddings", rows=_num_texts, asks_model=True, temporary=True)
def encode_texts(
    making: Building,
    pool: Pool,
    model: Artifact,
    corpus: Artifact | None = None,
    dataset: Artifact | None = None,
    quantized: Artifact | None = None,
    *,
    split: str = "",
    settings: EncodeConfig,
    arithmetic: Arithmetic,
    tokenizer: Annotated[str, Neutral] = TOKENIZER,
    encoder: Annotated[str, Neutral] = ENCODER,
) -> dict[str, Any]:
    """Encode every passage of a corpus, or the queries of a split: an ``embeddings`` artefact.

    Args:
        making: artefact to make.
        pool: pool of the encoders.
        model: model saved by raydr.
        corpus: passages to encode; None for queries.
        dataset: queries to encode; None for passages.
        quantized: the model's encoder in int8; None without int8.
        split: split of the queries; empty for passages.
        settings: batches, and size and number of the encoders.
        arithmetic: device and dtype, see :func:`raydr.distributed.arithmetic.resolve_arithmetic`.
        tokenizer: ``module:callable``, see :data:`TOKENIZER`.
        encoder: ``module:callable``, see :data:`ENCODER`.

    Returns:
        Info of the manifest, which :class:`raydr.data.embeddings.Embeddings` reads.

    Raises:
        ConfigError: the cluster cannot hold an encoder and a tokenising task.
        ModelError: a vector is not finite, or a worker lacks the resolved device.
    """
    side: Side = "query" if split else "passage"
    under = f"queries/{split}" if split else "passages"
    texts = corpus or dataset
    assert texts is not None
    parts = texts.parts(under)
    detail(
        f"encode: dtype {arithmetic.dtype} on {arithmetic.device} ({arithmetic.reason}), "
        f"batches of {arithmetic.token_budget:,} tokens"
    )
    job = Job(
        model, texts, tuple(parts), making.folder, side, arithmetic, pool.num_threads(settings.cpus_per_actor),
        tokenizer, encoder, quantized,
    )  # fmt: skip
    items = {output_name(at): {"part": at, "rows": texts.manifest.parts[name].rows} for at, name in enumerate(parts)}
    partitions = list(map(partition_of, parts))
    unit = "queries" if split else "passages"
    feed = Feed(EncodeParts, job, settings, before=tokenize_part, calls_at_once=EncodeParts.calls_at_once)
    started = time.perf_counter()
    reports = feed_parts(making, pool, feed, items, f"encode {unit}", unit)
    if reports:
        _say_how_fast(reports, unit, time.perf_counter() - started)
    return {
        "dim": dim_of(read_arrow(making.folder.localize(output_name(0)))),
        "num_rows": texts.rows(under),
        "side": side,
        "model": model.fingerprint,
        "dtype": arithmetic.dtype,
        "dtype_reason": arithmetic.reason,
        "device": arithmetic.device,
        "source": texts.fingerprint,
        **({"split": split} if split else {}),
        **({"partitions": partitions} if any(partitions) else {}),
    }


def _say_how_fast(reports: list[dict[str, Any]], unit: str, seconds: float) -> None:
    total = {column: float(sum(row[column] for row in reports)) for column in ("rows", "tokens", "truncated")}
    cut = f", {total['truncated']:,.0f} cut at the maximum length" if total["truncated"] else ""
    say(f"encode: {total['rows']:,.0f} {unit} in {seconds:.1f} s ({total['rows'] / seconds:,.0f}/s){cut}")
    detail(f"encode: {total['tokens']:,.0f} tokens, start-up counts")
