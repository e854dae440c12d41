"""The encoder of a model in int8, once for all workers: an artefact ``quantized``.

::

    encoder.xml, encoder.bin    OpenVINO's graph, see :mod:`raydr.models.int8`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_corpus
from raydr.component import Neutral
from raydr.console import say
from raydr.data import Corpus
from raydr.distributed.pool import Needs, Pool
from raydr.models.encode_config import NUM_CALIBRATING
from raydr.store import Artifact, Building, Folder
from raydr.store.folder import publish_files

#: Maximum of parts of the sample; each may have to be fetched.
_MOST_PARTS = 8


def quantized(context: Context, model: Node, name: str) -> Node:
    """Return the node of a model's passage encoder in int8."""
    cpus = context.config.encode.cpus_per_actor
    label = context.label("quantize", name)
    return quantize_encoder.node(
        label, model=model, corpus=declare_corpus(context), num_cpus=cpus, demand={"CPU": cpus}
    )


@artefact("quantized", rows=lambda of: NUM_CALIBRATING, asks_model=True, temporary=True)
def quantize_encoder(
    making: Building, pool: Pool, model: Artifact, corpus: Artifact, *, num_cpus: Annotated[float, Neutral]
) -> dict[str, Any]:
    """Measure the scales of a model's encoder on a sample of a corpus.

    Args:
        making: artefact to make.
        pool: pool for the work.
        model: model saved by raydr.
        corpus: corpus to encode later.
        num_cpus: CPUs of the worker.

    Raises:
        ModelError: the worker lacks a package or the processor's instructions, or the encoder cannot be quantised.
    """
    facts = pool.run(_quantize, making.folder, model, corpus, needs=Needs(num_cpus))
    making.record_files()
    cosine = facts["cosine"]
    say(
        f"quantize: scales of int8 measured on {facts['num_passages']:,} passages, whose vectors have a cosine of "
        f"{cosine['mean']:.4f} to those in float32 (lowest {cosine['lowest']:.4f})"
    )
    return dict(facts)


def sample_rows(starts: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return rows spread evenly over a few parts, including the first and the last row.

    Args:
        starts: first row of each part, and the number of rows.
        num_rows: size of the sample; all rows if they are fewer.

    >>> sample_rows(np.array([0, 10, 20, 30]), 5).tolist()
    [0, 7, 14, 22, 29]
    """
    parts = np.unique(np.linspace(0, len(starts) - 2, _MOST_PARTS).round().astype(np.int64))
    rows = np.concatenate([np.arange(starts[part], starts[part + 1]) for part in parts])
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, num_rows).round().astype(np.int64))])


def _quantize(output: Folder, model: Artifact, corpus: Artifact) -> dict[str, Any]:
    import torch

    from raydr.models.dual_encoder import load_tokenizer, load_tower
    from raydr.models.int8 import quantize

    folder, passages = model.local_folder(), Corpus(corpus)
    rows = sample_rows(passages.passages.starts, NUM_CALIBRATING)
    texts, tokenizer = passages.texts(rows), load_tokenizer(folder, "passage")
    tokens = tokenizer(texts.titles, texts.texts)
    tower = load_tower(folder, "passage").ready("cpu", torch.float32)
    cosine: dict[str, float] = {}

    def save(path: Path) -> None:
        cosine.update(quantize(tower, tokens, tokenizer.pad_id, "passage", path))

    publish_files(output, save)
    return {"num_passages": len(rows), "cosine": cosine}
