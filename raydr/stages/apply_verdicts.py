"""From verdicts to data that is trained on: judged negatives, data sets with fewer pairs. Inputs stay as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow, read_parquet, to_table, write_arrow
from raydr.errors import ConfigError, DataError
from raydr.noise.chain import judge_negatives, split_pairs
from raydr.runtime.console import say, show_summary, warn
from raydr.stages.tasks import results
from raydr.store.artifact import FORMAT_VERSION, Artifact, Building, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part

#: Of data sets without dropped pairs; 2: these are kept as such.
FILTER_VERSION = 2


def apply_verdicts(
    config: RunConfig, split: str, negatives: Folder, verdicts: list[Folder], output: Folder, overwrite: bool = False
) -> Artifact:
    """Make a ``negatives`` artefact like ``negatives`` with the actions and weights of the verdicts.

    All rows stay, with their provenance: training leaves out what is dropped and never uses it for that query, not as
    an in-batch negative either; relabelled candidates become further positives. Where several judges speak of a
    candidate the strongest action wins, see :data:`raydr.noise.chain.STRENGTH`.

    Args:
        config: kept in the manifest.
        split: the split that was judged.
        negatives: what was judged; actions that it has already count as one more verdict.
        verdicts: one ``verdicts`` artefact a judge, in any order.
        output: where the artefact goes.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: there are no verdicts.
        DataError: verdicts are on something else than these negatives.
    """
    import ray

    mined = Artifact.open(negatives, "negatives")
    judged = _open_verdicts(verdicts, "negatives", mined, split)
    names = _judge_names(judged)
    inputs = {f"verdicts.{name}": one.fingerprint for name, one in zip(names, judged, strict=True)}
    inputs["negatives"] = mined.fingerprint
    # The data set that the candidates belong to: export and training compare it with theirs.
    inputs |= {role: of for role, of in mined.manifest.identity.inputs.items() if role == "dataset"}
    identity = Identity(kind="negatives", config={"split": split}, inputs=inputs)
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"judged negatives {output}: already there with the same fingerprint, reused")
            return state
        job = ray.remote(num_cpus=1)(_apply_to_part)
        prefix = f"negatives/{split}/"
        pending = []
        for at, name in enumerate(mined.parts(f"negatives/{split}")):
            pending.append(job.remote(negatives, name, verdicts, f"verdicts/{split}/part-{at:05d}-", output))
        totals = np.zeros(5, dtype=np.int64)
        for name, part, counts in results(pending, "apply verdicts", "parts"):
            state.done[name] = Part.model_validate(part)
            totals += counts
        others = [name for name in mined.parts() if not name.startswith(prefix)]
        _copy_parts(mined, others, state)
        kept, weighted, dropped, relabelled, empty = totals.tolist()
        counts = {"keep": kept, "down_weight": weighted, "drop": dropped, "relabel": relabelled, "queries_empty": empty}
        info = {**mined.info, "judges": names, **counts}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    show_summary(
        f"negatives judged by {', '.join(names)}",
        {name.replace("_", " "): f"{count:,}" for name, count in counts.items()} | {"at": str(output)},
    )
    if empty:
        warn(f"{empty:,} queries have no negative left: training fills them up with random passages")
    return made


def filter_pairs(
    config: RunConfig, split: str, dataset: Folder, verdicts: list[Folder], output: Folder, overwrite: bool = False
) -> Artifact:
    """Make a ``dataset`` artefact like ``dataset`` without the pairs of a split that a judge drops.

    What is dropped is kept as ``dropped``: where its query has another positive, the passage is no negative either.
    Nothing else changes; queries whose pairs are all dropped stay in the data set and are not trained on.

    Raises:
        ConfigError: there are no verdicts.
        DataError: verdicts are on something else than the pairs of this data set.
    """
    data = Dataset.open(dataset)
    judged = _open_verdicts(verdicts, "dataset", data.artifact, split)
    names = _judge_names(judged)
    inputs = {f"verdicts.{name}": one.fingerprint for name, one in zip(names, judged, strict=True)}
    return _filter(
        config,
        data,
        split,
        {"split": split},
        inputs,
        verdicts,
        f"pairs judged by {', '.join(names)}",
        output,
        overwrite,
    )


def clean_only(config: RunConfig, split: str, dataset: Folder, output: Folder, overwrite: bool = False) -> Artifact:
    """Make a ``dataset`` artefact like ``dataset`` without the pairs of a split that were made noisy on purpose.

    The upper bound that detection of mismatched pairs is measured against (the papers' "clean only").

    Raises:
        DataError: no noise was injected into the split.
    """
    data = Dataset.open(dataset)
    noise = data.qrels(split)["noise"]
    if noise.null_count == len(noise):
        raise DataError(
            f"no pair of split {split!r} of {dataset} was made noisy on purpose: nothing is known to be wrong"
        )
    settings = {"split": split, "clean_only": True}
    return _filter(config, data, split, settings, {}, None, "only pairs known to be clean", output, overwrite)


def _filter(
    config: RunConfig,
    data: Dataset,
    split: str,
    settings: dict[str, Any],
    inputs: dict[str, str],
    verdicts: list[Folder] | None,
    title: str,
    output: Folder,
    overwrite: bool,
) -> Artifact:
    import ray

    inputs = {**inputs, "dataset": data.fingerprint, "corpus": data.corpus_fingerprint}
    version = FORMAT_VERSION if verdicts is None else FILTER_VERSION
    with begin(output, Identity(kind="dataset", version=version, config=settings, inputs=inputs), overwrite) as state:
        if isinstance(state, Artifact):
            say(f"data set {output}: already there with the same fingerprint, reused")
            return state
        changed = (f"qrels/{split}/", f"dropped/{split}/")
        mine = data.artifact.parts(f"qrels/{split}")
        job = ray.remote(num_cpus=1)(_filter_part)
        pending = [
            job.remote(data.artifact.folder, name, verdicts, f"verdicts/{split}/part-{at:05d}-", output)
            for at, name in enumerate(mine)
        ]
        for written in results(pending, "filter pairs", "parts"):
            state.done |= {name: Part.model_validate(part) for name, part in written.items()}
        _copy_parts(data.artifact, [name for name in data.artifact.parts() if not name.startswith(changed)], state)
        before = data.artifact.rows(f"qrels/{split}")
        after = sum(state.done[name].rows for name in mine)
        info = {**data.artifact.info, "judgments_before": before, "judgments_after": after}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    if not after:
        warn(f"not one judgment of split {split!r} is left")
    facts = {"judgments before": f"{before:,}", "dropped": f"{before - after:,}", "left": f"{after:,}"}
    show_summary(f"{split}: {title}", facts | {"at": str(output)})
    return made


def _open_verdicts(verdicts: list[Folder], role: str, subject: Artifact, split: str) -> list[Artifact]:
    """The verdicts, all of them on the given artefact."""
    if not verdicts:
        raise ConfigError("there are no verdicts to apply: run a judge first")
    opened = [Artifact.open(folder, "verdicts") for folder in verdicts]
    kind = "pairs" if role == "dataset" else role
    for one in opened:
        if one.info["subject"] != kind or one.info["split"] != split:
            raise DataError(
                f"the verdicts at {one.folder} are on {one.info['subject']} of split {one.info['split']!r}, "
                f"expected {kind} of split {split!r}"
            )
        if one.manifest.identity.inputs[role] != subject.fingerprint:
            raise DataError(
                f"the verdicts at {one.folder} were given on another {subject.manifest.identity.kind} artefact than "
                f"the one at {subject.folder}: judge that one"
            )
    return opened


def _judge_names(judged: list[Artifact]) -> list[str]:
    names = [str(one.info["judge"]) for one in judged]
    if len(set(names)) < len(names):
        raise ConfigError(f"a judge's verdicts are given twice: {', '.join(names)}")
    return names


def _verdict_tables(verdicts: list[Folder], prefix: str) -> list[pa.Table]:
    """The verdicts on one part of what was judged, of all judges."""
    opened = [Artifact.open(folder, "verdicts") for folder in verdicts]
    return [read_parquet(one.local(name)) for one in opened for name in one.parts() if name.startswith(prefix)]


def _apply_to_part(
    negatives: Folder, name: str, verdicts: list[Folder], prefix: str, output: Folder
) -> tuple[str, dict[str, Any], list[int]]:
    mined = read_arrow(Artifact.open(negatives, "negatives").local(name))
    judged = judge_negatives(mined, _verdict_tables(verdicts, prefix))
    record = _write(output, name, judged.num_rows, partial(write_arrow, judged))
    actions = judged["action"].to_pylist()
    used = {
        query_id
        for query_id, action in zip(judged["query_id"].to_pylist(), actions, strict=True)
        if action in ("keep", "down_weight")
    }
    empty = len(set(judged["query_id"].to_pylist())) - len(used)
    return name, record, [*(actions.count(one) for one in ("keep", "down_weight", "drop", "relabel")), empty]


def _filter_part(
    dataset: Folder, name: str, verdicts: list[Folder] | None, prefix: str, output: Folder
) -> dict[str, dict[str, Any]]:
    """Write what is left of one part of the judgments, and what judges have dropped of it, now or before."""
    artifact = Artifact.open(dataset, "dataset")
    qrels = read_arrow(artifact.local(name))
    dropped_name = name.replace("qrels/", "dropped/", 1)
    dropped = [read_arrow(artifact.local(dropped_name))] if dropped_name in artifact.manifest.parts else []
    if verdicts is None:
        left = qrels.filter(qrels["noise"].is_null())
    else:
        left, pairs = split_pairs(qrels, _verdict_tables(verdicts, prefix))
        rows = pairs.select(["query_id", "passage_id"]).to_pylist()
        dropped.append(to_table("negatives", ({**row, "miner": "pair", "rank": 0, "action": "drop"} for row in rows)))
    written = {name: _write(output, name, left.num_rows, partial(write_arrow, left))}
    together = pa.concat_tables(dropped) if dropped else None
    if together is not None and together.num_rows:
        written[dropped_name] = _write(output, dropped_name, together.num_rows, partial(write_arrow, together))
    return written


def _copy_parts(source: Artifact, names: list[str], state: Building) -> None:
    """Copy parts as they are, by one worker."""
    import ray

    job = ray.remote(num_cpus=1)(_copy_part)
    pending = [job.remote(source.folder, source.manifest.identity.kind, name, state.folder) for name in names]
    for name, part in results(pending, "copy", "parts"):
        state.done[name] = Part.model_validate(part)


def _copy_part(source: Folder, kind: str, name: str, output: Folder) -> tuple[str, dict[str, Any]]:
    artifact = Artifact.open(source, kind)
    path = artifact.local(name)

    def copy(target: str) -> None:
        shutil.copyfile(path, target)

    return name, _write(output, name, artifact.manifest.parts[name].rows, copy)


def _write(output: Folder, name: str, rows: int, write: Callable[[str], None]) -> dict[str, Any]:
    record = write_part(output, name, rows, write)
    record_part(output, name, record)
    return record
