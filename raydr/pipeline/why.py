"""``raydr why``: all data on a query, from the named artefacts: positives, negatives with provenance, verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from raydr.artefacts.places import NOISY, Places
from raydr.config.run import RunConfig
from raydr.console import counted, print_indented, shown
from raydr.data import Corpus, Dataset
from raydr.data.dataset import read_split
from raydr.errors import DataError
from raydr.noise.judges.base import judge_class
from raydr.store import Artifact


def explain_query(config: RunConfig, wanted: str) -> QueryRecord:
    """Collect the data on a query from the artefacts of a working folder.

    Args:
        config: config of the run, whose named candidates and verdicts are read.
        wanted: id of the query, or its text; if several splits have it, that of the training split.

    Raises:
        DataError: no split has the query.
    """
    places = Places.of(config.workdir)
    data = dataset_of(config, places)
    passages = Corpus(places.open("corpus", "corpus"))
    split, query = _find(data, wanted, config.data.train_split)
    query_id = query["query_id"]
    judged = [row for row in _rows(data.qrels(split), query_id) if row["relevance"] > 0]
    provenance: dict[str, list[dict[str, Any]]] = defaultdict(list)
    artifacts, others = artifacts_of(places, data)
    for name, row in _candidates(artifacts, data, split, query_id):
        provenance[row["passage_id"]].append({**row, "artifact": name})
    verdicts = _verdicts(artifacts, split, query_id)
    positive_ids = [row["passage_id"] for row in judged]
    negative_ids = sorted(
        provenance, key=lambda passage_id: (min(place["rank"] for place in provenance[passage_id]), passage_id)
    )
    shown_ids = [*positive_ids, *negative_ids]
    texts = passages.texts(passages.rows_of(shown_ids))
    shown = zip(shown_ids, texts.titles, texts.texts, strict=True)
    explained = [
        ExplainedPassage(passage_id, title, text, verdicts.get(passage_id, ())) for passage_id, title, text in shown
    ]
    positives = [replace(passage, judgment=row) for passage, row in zip(explained, judged, strict=False)]
    negatives = [replace(passage, provenance=provenance[passage.passage_id]) for passage in explained[len(judged) :]]
    answers = tuple(query["answers"] or ())
    return QueryRecord(query_id, split, query["text"], answers, tuple(positives), tuple(negatives), tuple(others))


def _find(data: Dataset, wanted: str, first: str) -> tuple[str, dict[str, Any]]:
    """Return the query's split and row; ``first`` is preferred if several splits have the query."""
    for column in ("query_id", "text"):
        for split in sorted(data.splits, key=lambda name: name != first):
            for row in _rows(data.queries(split), wanted, column):
                return split, row
    raise DataError(
        f"no split of the data set at {data.artifact.folder} ({', '.join(data.splits)}) has a query with the id or "
        f"text {wanted!r}: see the queries of the source, or flagged.csv of an audit, for both"
    )


def _rows(table: pa.Table, value: str, column: str = "query_id") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.filter(pc.equal(table[column], value)).to_pylist()
    return rows


def dataset_of(config: RunConfig, places: Places) -> Dataset:
    """Return the config's data set: the noisy data set if noise is injected."""
    # The working folder keeps the noisy data set's name when a config no longer injects noise.
    return Dataset(places.open("dataset" if config.inject_noise is None else NOISY, "dataset"))


def artifacts_of(places: Places, data: Dataset) -> tuple[dict[str, list[tuple[str, Artifact]]], list[str]]:
    """Return the named candidates and verdicts of a data set by kind, and the names of those of other data sets.

    Copies of the data set without dropped pairs count as the same data set.
    """
    by_kind: dict[str, list[tuple[str, Artifact]]] = {"negatives": [], "verdicts": [], "dataset": []}
    seen: set[str] = set()
    for name in places.names():
        pointer = places.pointer(name)
        if pointer is None or pointer.kind not in by_kind or pointer.key in seen:
            continue
        seen.add(pointer.key)
        by_kind[pointer.kind].append((name, places.open(name, pointer.kind)))
    ours = {data.fingerprint}
    ours |= {
        artifact.fingerprint
        for name, artifact in by_kind.pop("dataset")
        if name != NOISY and artifact.manifest.identity.inputs.get("dataset") in ours
    }
    matches = {
        kind: [(name, artifact) for name, artifact in those if artifact.manifest.identity.inputs["dataset"] in ours]
        for kind, those in by_kind.items()
    }
    taken = {name for those in matches.values() for name, _ in those}
    return matches, [name for those in by_kind.values() for name, _ in those if name not in taken]


def _candidates(
    artifacts: dict[str, list[tuple[str, Artifact]]], data: Dataset, split: str, query_id: str
) -> list[tuple[str, dict[str, Any]]]:
    own = [("dataset", row) for table in (data.negatives, data.dropped) for row in _rows(table(split), query_id)]
    mined = [
        (name, row)
        for name, artifact in artifacts["negatives"]
        for row in _rows(read_split(artifact, "negatives", split), query_id)
    ]
    return own + mined


def _verdicts(
    artifacts: dict[str, list[tuple[str, Artifact]]], split: str, query_id: str
) -> dict[str, list[dict[str, Any]]]:
    verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, artifact in artifacts["verdicts"]:
        score_name = judge_class(artifact.manifest.identity.config["judge"]).score_name
        for part in artifact.parts(f"verdicts/{split}"):
            table = pq.read_table(artifact.local(part), filters=[("query_id", "==", query_id)], partitioning=None)
            for row in table.to_pylist():
                verdicts[row["passage_id"]].append({**row, "artifact": name, "score_name": score_name})
    return verdicts


#: Maximal number of characters that are shown of a passage.
MAX_TEXT = 600
_STYLES = {"keep": "green", "drop": "red", "down_weight": "yellow", "relabel": "magenta"}


@dataclass(frozen=True)
class ExplainedPassage:
    """A passage with its judgment, provenance and verdicts for the query.

    Args:
        passage_id, title, text: the passage.
        verdicts: verdicts of all judges, by name of the artefact: rows of the table ``verdicts``, with ``artifact`` and
            ``score_name``, the meaning of the judge's score.
        provenance: its rows in the tables ``negatives``, with ``artifact``; empty for positives.
        judgment: its row in the table ``qrels``; only for positives.
    """

    passage_id: str
    title: str
    text: str
    verdicts: Sequence[Mapping[str, Any]]
    provenance: Sequence[Mapping[str, Any]] = ()
    judgment: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueryRecord:
    """A query with its positives and its negatives, ordered by their best rank.

    ``of_other_data`` names artefacts that were left out, since they were made from another data set.
    """

    query_id: str
    split: str
    text: str
    answers: tuple[str, ...]
    positives: tuple[ExplainedPassage, ...]
    negatives: tuple[ExplainedPassage, ...]
    of_other_data: tuple[str, ...] = ()


def print_query(record: QueryRecord, console: Console) -> None:
    """Print the query, its positives and each negative with provenance, verdicts and text."""
    console.print(Text.assemble((shown(record.text), "bold"), f"  (query {record.query_id}, split {record.split})"))
    if record.answers:
        console.print(Text(shown(f"answers: {' | '.join(record.answers)}")))
    console.print(Text(f"\n{counted(len(record.positives), 'positive')}", style="bold underline"))
    for passage in record.positives:
        _print_passage(passage, console)
    console.print(Text(f"{counted(len(record.negatives), 'candidate negative')}", style="bold underline"))
    for passage in record.negatives:
        _print_passage(passage, console)
    if record.of_other_data:
        console.print(Text(f"left out, made from other data: {', '.join(record.of_other_data)}", style="yellow"))


def _print_passage(passage: ExplainedPassage, console: Console) -> None:
    head = Text.assemble((passage.passage_id, "dim"), "  ", (shown(passage.title), "bold"))
    if passage.judgment is not None and passage.judgment["noise"] is not None:
        original = passage.judgment["original_passage_id"]
        instead = f", in place of {original}" if original else ""
        head.append(f"  [injected noise: {passage.judgment['noise']}{instead}]", style="yellow")
    console.print(head)
    for line in [*_provenance_lines(passage.provenance), *map(_verdict_line, passage.verdicts)]:
        print_indented(console, line, 4)
    print_indented(console, passage.text, 4, MAX_TEXT)


def _provenance_lines(places: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a line for each time the passage was mined, with the actions of judged copies of the artefact."""
    lines: dict[tuple[str, int, int], Text] = {}
    for place in places:
        key = (place["miner"], place["round"], place["rank"])
        if key not in lines:
            score = "no score" if place["score"] is None else f"score {place['score']:.4f}"
            positive = "not retrieved" if place["positive_score"] is None else f"{place['positive_score']:.4f}"
            noise = f", {place['noise']} on purpose" if place["noise"] else ""
            where = "found by {}, round {}, rank {}".format(*key)
            lines[key] = Text(f"{where}, {score} (positive: {positive}){noise}:")
        lines[key].append(f" {place['artifact']} ")
        lines[key].append(_action(place), style=_STYLES[place["action"]])
    return list(lines.values())


def _verdict_line(verdict: Mapping[str, Any]) -> Text:
    line = Text.assemble((verdict["judge"], "bold"), " says ", (_action(verdict), _STYLES[verdict["action"]]))
    line.append(f", {verdict['score_name']} {verdict['score']:.4f}")
    if verdict["truth"] is not None:
        line.append(f"; in truth {'planted noise' if verdict['truth'] else 'no planted noise'}")
    return line.append(f"  ({verdict['artifact']})", style="dim")


def _action(row: Mapping[str, Any]) -> str:
    return f"{row['action']} {row['weight']:g}" if row["action"] == "down_weight" else str(row["action"])
