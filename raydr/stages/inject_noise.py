"""A copy of a data set whose training split is noisy on purpose, with the truth in its columns."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.noise_injection import inject_false_negatives, inject_mismatched, plant_second_positives
from raydr.data.schema import write_arrow
from raydr.errors import ConfigError
from raydr.runtime.console import say, show_summary
from raydr.stages.tasks import fetch
from raydr.store.artifact import Artifact, Identity, Part, begin, write_and_record
from raydr.store.folder import Folder

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
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    output: Folder,
    overwrite: bool = False,
    second_positives: Folder | None = None,
) -> Artifact:
    """Make a ``dataset`` artefact like ``dataset``, with ``config.inject_noise`` applied to the training split.

    Nothing else changes: queries, the other splits and what else the data set holds are copied. What was replaced
    or planted is said by the columns ``noise`` and ``original_passage_id``, see
    :mod:`raydr.data.noise_injection`. With share 0 all tables are as they were, but for second positives, which then
    all are judgments.

    Args:
        config: the run.
        dataset: a data set without injected noise.
        corpus: the corpus it was made with; where second positives added passages, the extended one, which the
            artefact then names as its corpus.
        output: where the artefact goes.
        overwrite: replace what is there.
        second_positives: artefact ``second_positives`` made from the data set, if ``inject_noise.sources`` names some.
            Its table is copied into the artefact.

    Raises:
        ConfigError: the config has no section ``inject_noise``, or second positives and its sources do not fit.
        DataError: the data set has no training split, injected noise already, was made with another corpus, or
            nothing that this kind of noise can be made of.
    """
    import ray

    settings = config.inject_noise
    if settings is None:
        raise ConfigError("injecting noise needs a section inject_noise in the config, for example {share: 0.2}")
    if bool(settings.sources) != (second_positives is not None):
        raise ConfigError(
            f"inject_noise.sources is {settings.sources}, and "
            + ("no second positives were given: make them first" if settings.sources else "takes no second positives")
        )
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    made_before = None if second_positives is None else Artifact.open(second_positives, "second_positives")
    if not _extends(passages, data, made_before):
        data.require_corpus(passages.artifact)
    split = config.data.train_split
    noise: dict[str, Any] = {"kind": settings.kind, "share": settings.share}
    inputs = {"corpus": passages.fingerprint, "dataset": data.fingerprint}
    if made_before is not None:
        inputs["second_positives"] = made_before.fingerprint
    identity = Identity(
        kind="dataset", config={"inject_noise": noise, "seed": config.seed, "split": split}, inputs=inputs
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"noisy data set {output}: already there with the same fingerprint, reused")
            return state
        job = ray.remote(num_cpus=1)(_make)
        made: _Made = fetch(
            job.remote(settings, config.seed, split, dataset, corpus, second_positives, output, sorted(state.done))
        )
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


def _extends(corpus: Corpus, data: Dataset, second_positives: Artifact | None) -> bool:
    """Whether the corpus is that of the data set and the passages of these second positives."""
    inputs = corpus.artifact.manifest.identity.inputs
    return (
        second_positives is not None
        and inputs.get("corpus") == data.corpus_fingerprint
        and inputs.get("second_positives") == second_positives.fingerprint
        and second_positives.manifest.identity.inputs["dataset"] == data.fingerprint
    )


def _make(
    settings: NoiseInjectionConfig,
    seed: int,
    split: str,
    dataset: Folder,
    corpus: Folder,
    second_positives: Folder | None,
    output: Folder,
    done: list[str],
) -> _Made:
    """Copy what stays, write what changes. The new tables are cheap, so a resume writes them again."""
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    qrels, negatives = data.qrels(split), data.negatives(split)
    parts: dict[str, Part] = {}
    if second_positives is None:
        positives = list(dict.fromkeys(qrels["passage_id"].to_pylist()))
        hashes = passages.content_hashes(passages.rows_of(positives)).tolist()
        inject = inject_mismatched if settings.kind == "mismatched" else inject_false_negatives
        injected = inject(qrels, negatives, dict(zip(positives, hashes, strict=True)), settings.share, seed)
    else:
        made = read_split(Artifact.open(second_positives, "second_positives"), "second_positives", split)
        # A passage that is not there would be found out only when training reads it.
        passages.rows_of(made["passage_id"].to_pylist())
        injected = plant_second_positives(qrels, negatives, made, settings.share, seed)
        name = f"second_positives/{split}/part-00000.arrow"
        parts[name] = write_and_record(output, name, len(made), partial(write_arrow, made))
    changed = (f"qrels/{split}/", f"negatives/{split}/")
    for name in data.artifact.parts():
        if name not in done and not name.startswith(changed):
            rows = data.artifact.manifest.parts[name].rows
            parts[name] = write_and_record(output, name, rows, partial(_copy, data.artifact.local(name)))
    for prefix, table in zip(changed, (injected.qrels, injected.negatives), strict=True):
        for at, start in enumerate(range(0, len(table), _PART_ROWS)):
            piece = table.slice(start, _PART_ROWS)
            name = f"{prefix}part-{at:05d}.arrow"
            parts[name] = write_and_record(output, name, len(piece), partial(write_arrow, piece))
    return _Made(parts, injected.num_eligible_queries, injected.num_noisy_queries, injected.num_noisy_rows)


def _copy(source: str, path: str) -> None:
    shutil.copyfile(source, path)
