"""``raydr report``: the page of a run, from the named artefacts in its working folder; needs no Ray."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import audit
from raydr.artefacts import evaluation as evaluate
from raydr.artefacts.evaluation import PER_QUERY
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.console import show_summary, warn
from raydr.data import Corpus, Dataset
from raydr.data.dataset import positives_of, query_texts
from raydr.data.tables import RUNS, passages_by_query, read_parquet
from raydr.pages.audit import DetectedPairs, margin_histogram, parse_fit
from raydr.pages.evaluation import telling_measure
from raydr.pages.html import BrowsedQuery, QueryBrowser, number
from raydr.pages.run import ModelRecord, RunRecord, run_page
from raydr.pipeline.forecast import read_forecast
from raydr.pipeline.running import read_times
from raydr.store import Artifact, Folder
from raydr.store.identity import COMMANDS, MANIFEST

#: The page, in the working folder.
PAGE = "report.html"
#: Queries on a page (those on which systems differ most), passages of each system, and characters of a passage.
NUM_QUERIES, TOP, TEXT = 300, 5, 300


def write_report(config: RunConfig, places: Places) -> str:
    """Write the page of a run and return its path.

    Args:
        config: config of the run.
        places: places of its working folder; named models, evaluations, audits and verdicts are shown.
    """
    root, complete = places.root, _complete(places)

    def named(under: str, kind: str) -> list[tuple[str, Artifact]]:
        of_kind = [(name, artifact) for name, artifact in complete.items() if artifact.kind == kind]
        prefix = f"{under}/"
        return [(name.removeprefix(prefix), artifact) for name, artifact in of_kind if name.startswith(prefix)]

    evaluations, audits = named("evaluation", "evaluation"), named("audits", "audit")
    browsers = {name: browser for name, artifact in evaluations if (browser := _browse(places, artifact)) is not None}
    outdated = list(_outdated(evaluations, audits, complete))
    for sentence in outdated:
        warn(sentence)
    record = RunRecord(
        name=config.name,
        models=[_model_record(name, model) for name, model in named("models", "model")],
        evaluations=[
            (evaluate.load_result(made), f"evaluation/{name}/{evaluate.REPORT}") for name, made in evaluations
        ],
        audits=[(audit.load_result(made), f"audits/{name}/{audit.REPORT}") for name, made in audits],
        verdicts=[(name, artifact.info) for name, artifact in named("verdicts", "verdicts")],
        rankers=[ModelRecord(name, artifact.info) for name, artifact in named("models", "cross_encoder")],
        plan=_plan_record(root),
        pages=_other_pages(places),
        browsers=browsers,
        made=_made(places, complete),
        outdated=outdated,
    )
    with root.publish(PAGE) as path:
        Path(path).write_text(run_page(record), encoding="utf-8")
    counted = ("models", "evaluations", "audits", "verdicts", "rankers", "pages")
    show_summary("report", {**{name: len(getattr(record, name)) for name in counted}, "at": root / PAGE})
    return str(root / PAGE)


def _complete(places: Places) -> dict[str, Artifact]:
    """Return the complete artefacts by name; warn of incomplete ones, which another command may be making."""
    opened, missing = {}, []
    for name in places.names():
        if (pointer := places.pointer(name)) is None:
            continue
        if places.folder(pointer.kind, pointer.key).exists(MANIFEST):
            opened[name] = places.open(name, pointer.kind)
        else:
            missing.append(name)
    if missing:
        warn(f"not on the page: {', '.join(missing)}: removed, or another command is making it")
    return opened


def _outdated(
    evaluations: Iterable[tuple[str, Artifact]],
    audits: Iterable[tuple[str, Artifact]],
    complete: Mapping[str, Artifact],
) -> Iterator[str]:
    """Yield a sentence for each evaluation and audit of data or models that names have left."""
    shown = [(f"The figures on {split} are", "evaluate", evaluation) for split, evaluation in evaluations]
    shown += [(f"The figures of audit {name} are", "audit", audit) for name, audit in audits]
    for figures, verb, artifact in shown:
        manifest = artifact.manifest
        systems = manifest.identity.config.get("systems", ())
        models = sorted({f"models/{part}" for system in systems for part in re.split("[@+]", system)})
        named = [name for name in ("corpus", "dataset", *models) if name in complete]
        if other := [name for name in named if complete[name].fingerprint not in manifest.made_from]:
            earlier = " and ".join(name.removeprefix("models/") for name in other)
            yield f"{figures} those of an earlier {earlier}: raydr {verb} CONFIG measures the present state."


def _made(places: Places, complete: Mapping[str, Artifact]) -> list[list[str]]:
    """Return a row for each artefact: its name, time, seconds, folder and command."""
    seconds = {timing.key: timing.seconds for timing in read_times(places.root)}
    rows = []
    for name, artifact in complete.items():
        took = number(seconds.get(artifact.fingerprint), ".1f")
        place = str(artifact.folder).removeprefix(f"{places.root}/")
        rows.append([name, artifact.manifest.created, took, place, COMMANDS.get(artifact.kind, "")])
    return rows


def _other_pages(places: Places) -> list[tuple[str, str]]:
    """Return title and address of the pages of the refresh rounds, the searches and the diagnoses."""
    root = places.root
    refresh = [("refresh rounds", f"refresh/{PAGE}")] if root.exists(f"refresh/{PAGE}") else []
    searches = [
        (f"search {file.split('/')[1]}", file)
        for file in root.files("tune")
        if file.count("/") == 2 and file.endswith(PAGE)
    ]
    diagnoses = [(f"diagnosis of {name.partition('/')[2]}", f"{name}/{PAGE}") for name in places.names("diagnoses")]
    return refresh + searches + diagnoses


def _plan_record(root: Folder) -> tuple[str, list[str], list[list[str]]] | None:
    if (plan := read_forecast(root)) is None:
        return None
    return f"for {plan.num_passages:,} passages, rates of {plan.device}", *plan.beside(read_times(root))


def _model_record(name: str, model: Artifact) -> ModelRecord:
    train = model.manifest.identity.config.get("training", {}).get("train", {})
    settings = ", ".join(
        [str(train.get("loss", {}).get("name", "nce" if train else ""))]
        + ["pair detection"] * bool(model.parts("detection"))
    )
    return ModelRecord(name, model.info, settings, _histogram(name, model))


def _histogram(name: str, model: Artifact) -> bytes | None:
    """Draw the margins of the last detection that a training has stored; return None if there is none."""
    parts = set(model.parts())
    # A training that was resumed after another with other settings lacks some of them.
    kept = [detection for detection in model.info.get("detections", []) if _detection_part(detection) in parts]
    if not kept:
        return None
    table = read_parquet(model.local(_detection_part(kept[-1])), ["margin", "clean"])
    pairs = DetectedPairs(table["margin"].to_numpy(), table["clean"].to_numpy(), parse_fit(kept[-1]["fit"]))
    return margin_histogram(pairs, f"Training pairs of {name}, for epoch {kept[-1]['epoch'] + 1}")


def _detection_part(detection: Mapping[str, Any]) -> str:
    return f"detection/epoch-{detection['epoch'] + 1:03d}.parquet"


def _browse(places: Places, evaluation: Artifact) -> QueryBrowser | None:
    """Return queries with the top passages of each system; None if an input of the evaluation was removed."""
    identity = evaluation.manifest.identity
    systems, split = list(identity.config["systems"]), str(identity.config["split"])
    roles = {"dataset": "dataset", "corpus": "corpus", **{f"runs/{system}": "run" for system in systems}}
    folders = {role: places.folder(kind, identity.inputs[role]) for role, kind in roles.items()}
    if not all(folder.exists(MANIFEST) for folder in folders.values()):
        return None
    opened = {role: Artifact.open(folder, roles[role]) for role, folder in folders.items()}
    data, corpus = Dataset(opened["dataset"]), Corpus(opened["corpus"])
    values = read_parquet(evaluation.local(PER_QUERY))
    measure = telling_measure(values["measure"].unique().to_pylist())
    table = values.filter(pc.equal(values["measure"], measure)).to_pandas()
    table = table.pivot(index="query_id", columns="system", values="value")[systems].dropna()
    spread = table.max(axis=1) - table.min(axis=1)
    chosen = table.iloc[np.argsort(-spread.to_numpy(), kind="stable")[:NUM_QUERIES]]
    ids = [str(query_id) for query_id in chosen.index]
    tops = [_top(Run(opened[f"runs/{system}"]), ids) for system in systems]
    passages = sorted({passage_id for top in tops for passage_ids in top.values() for passage_id in passage_ids})
    texts = corpus.texts_of_run(passages)
    positives = positives_of(data, split, ids)
    queries = []
    for query_id, text in zip(ids, query_texts(data, split, ids), strict=True):
        measured = [round(value, 4) for value in chosen.loc[query_id]]
        best = [top.get(query_id, []) for top in tops]
        queries.append(BrowsedQuery(text, positives.get(query_id, []), measured, best))
    shown = {
        passage_id: (title, text[:TEXT] + ("…" if len(text) > TEXT else ""))
        for passage_id, title, text in zip(passages, texts.titles, texts.texts, strict=True)
    }
    return QueryBrowser(systems, measure, queries, len(table), shown)


def _top(run: Run, query_ids: list[str]) -> dict[str, list[str]]:
    """Return the top passages of each query that has results."""
    rows = pa.concat_tables([RUNS.empty_table(), *run.of_queries(query_ids)])
    return passages_by_query(rows.filter(pc.less_equal(rows["rank"], TOP)))
