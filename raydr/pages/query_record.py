"""One query's positives, negatives and verdicts, readably on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from raydr.console import counted, print_indented, shown

#: Characters of a passage that are shown.
MAX_TEXT = 600
_STYLES = {"keep": "green", "drop": "red", "down_weight": "yellow", "relabel": "magenta"}


@dataclass(frozen=True)
class ExplainedPassage:
    """One passage and all that was said of it for the query.

    Args:
        passage_id, title, text: the passage.
        verdicts: of all judges, in the order of the artefacts' names: rows of the table ``verdicts``, with ``artifact``
            and ``score_name``, what the judge's score is.
        provenance: where it was proposed as a negative: rows of the table ``negatives``, with ``artifact``; empty for
            positives.
        judgment: for positives, the row of the table ``qrels``.
    """

    passage_id: str
    title: str
    text: str
    verdicts: Sequence[Mapping[str, Any]]
    provenance: Sequence[Mapping[str, Any]] = ()
    judgment: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueryRecord:
    """One query with its positives and its negatives, these in the order of their best rank.

    ``of_other_data`` names the artefacts that were left out, since they were made of another data set.
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
        console.print(Text(f"left out, made of other data: {', '.join(record.of_other_data)}", style="yellow"))


def _print_passage(passage: ExplainedPassage, console: Console) -> None:
    head = Text.assemble((passage.passage_id, "dim"), "  ", (shown(passage.title), "bold"))
    if passage.judgment is not None and passage.judgment["noise"] is not None:
        original = passage.judgment["original_passage_id"]
        instead = f", in place of {original}" if original else ""
        head.append(f"  [{passage.judgment['noise']} on purpose{instead}]", style="yellow")
    console.print(head)
    for line in [*_provenance_lines(passage.provenance), *map(_verdict_line, passage.verdicts)]:
        print_indented(console, line, 4)
    print_indented(console, passage.text, 4, MAX_TEXT)


def _provenance_lines(places: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a line for each time the passage was mined; judged copies of an artefact add their action to it."""
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
        line.append(f"; in truth {'noise' if verdict['truth'] else 'no noise that was planted'}")
    return line.append(f"  ({verdict['artifact']})", style="dim")


def _action(row: Mapping[str, Any]) -> str:
    return f"{row['action']} {row['weight']:g}" if row["action"] == "down_weight" else str(row["action"])
