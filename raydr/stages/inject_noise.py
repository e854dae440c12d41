"""A copy of a data set whose training split is noisy on purpose, with the truth in its columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from raydr.artifacts import Artifact, Identity, Part, begin, record_part
from raydr.config import RunConfig
from raydr.console import say, show_summary
from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import inject_false_negatives, inject_mismatched
from raydr.data.schema import write_arrow
from raydr.errors import ConfigError, DataError
from raydr.stages.tasks import fetch
from raydr.storage import Folder, write_part

#: Rows of one part of the tables that are written anew.
_PART_ROWS = 100_000


@dataclass(frozen=True)
class _Made:
    """What the worker did."""

    parts: dict[str, Part]
    eligible_queries: int
    noisy_queries: int
    noisy_rows: int


def inject_noise(
    config: RunConfig, dataset: Folder, corpus: Folder, output: Folder, overwrite: bool = False
) -> Artifact:
    """Make a ``dataset`` artefact like ``dataset``, with ``config.inject_noise`` applied to the training split.

    Nothing else changes: queries, the other splits and what else the data set holds are copied. What was replaced
    or planted is said by the columns ``noise`` and ``original_passage_id``, see
    :mod:`raydr.data.noise_injection`. With share 0 all tables are as they were.

    Raises:
        ConfigError: the config has no section ``inject_noise``.
        DataError: the data set has no training split, injected noise already, was made with another corpus, or
            nothing that this kind of noise can be made of.
    """
    import ray

    settings = config.inject_noise
    if settings is None:
        raise ConfigError("injecting noise needs a section inject_noise in the config, for example {share: 0.2}")
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    if data.corpus_fingerprint != passages.fingerprint:
        raise DataError(f"the data set at {dataset} was not made with the corpus at {corpus}: give the corpus it needs")
    split = config.data.train_split
    identity = Identity(
        kind="dataset",
        config={"inject_noise": settings.model_dump(mode="json"), "seed": config.seed, "split": split},
        inputs={"corpus": passages.fingerprint, "dataset": data.fingerprint},
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"noisy data set {output}: already there with the same fingerprint, reused")
            return state
        job = ray.remote(num_cpus=1)(_make)
        made: _Made = fetch(job.remote(settings, config.seed, split, dataset, corpus, output, sorted(state.done)))
        state.done.update(made.parts)
        counts = {name: value for name, value in asdict(made).items() if name != "parts"}
        info = {"noise": settings.kind, "share": settings.share, "split": split, **counts}
        artifact = state.finish(info, run_config=config.model_dump(mode="json"))
    show_summary(
        f"noise injected into {split}: {settings.kind}",
        {
            "share asked for": f"{settings.share:.1%}",
            "queries that could be made noisy": f"{made.eligible_queries:,}",
            "queries made noisy": f"{made.noisy_queries:,}",
            "judgments " + ("replaced" if settings.kind == "mismatched" else "planted as negatives"): (
                f"{made.noisy_rows:,}"
            ),
            "at": str(output),
        },
    )
    return artifact


def _make(
    settings: NoiseInjectionConfig,
    seed: int,
    split: str,
    dataset: Folder,
    corpus: Folder,
    output: Folder,
    done: list[str],
) -> _Made:
    """Copy what stays, write what changes. The new tables are cheap, so a resume writes them again."""
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    qrels, negatives = data.qrels(split), data.negatives(split)
    positives = list(dict.fromkeys(qrels["passage_id"].to_pylist()))
    hashes = passages.content_hashes(passages.rows_of(positives)).tolist()
    inject = inject_mismatched if settings.kind == "mismatched" else inject_false_negatives
    injected = inject(qrels, negatives, dict(zip(positives, hashes, strict=True)), settings.share, seed)
    parts: dict[str, Part] = {}
    changed = (f"qrels/{split}/", f"negatives/{split}/")
    for name in data.artifact.parts():
        if name not in done and not name.startswith(changed):
            rows = data.artifact.manifest.parts[name].rows
            parts[name] = _write(output, name, rows, partial(_copy, data.artifact.local(name)))
    for prefix, table in zip(changed, (injected.qrels, injected.negatives), strict=True):
        for at, start in enumerate(range(0, len(table), _PART_ROWS)):
            piece = table.slice(start, _PART_ROWS)
            name = f"{prefix}part-{at:05d}.arrow"
            parts[name] = _write(output, name, len(piece), partial(write_arrow, piece))
    return _Made(parts, injected.num_eligible_queries, injected.num_noisy_queries, injected.num_noisy_rows)


def _write(output: Folder, name: str, rows: int, write: Callable[[str], None]) -> Part:
    part = Part.model_validate(write_part(output, name, rows, write))
    record_part(output, name, part)
    return part


def _copy(source: str, path: str) -> None:
    shutil.copyfile(source, path)
