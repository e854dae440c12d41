"""Looking at a prepared data set before spending time on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.inspection import SplitInspection, TokenCounter, count_blank, count_duplicates
from raydr.data.inspection_report import (
    CorpusReport,
    Example,
    InspectionReport,
    Lengths,
    SplitReport,
    measure_lengths,
)
from raydr.evaluation.config import EvaluateConfig
from raydr.models.config import ModelConfig, Side
from raydr.runtime.console import console, say, show_summary, show_table, shown, warn
from raydr.seeding import query_rng
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: Passages whose tokens are counted, over all parts.
PASSAGE_SAMPLE = 10_000
#: Queries of each split whose tokens are counted, and whose passages are searched for answers.
QUERY_SAMPLE = 2_000
NUM_EXAMPLES = 3
REPORT = "inspection.json"
#: Longer than any model of today takes; lengths beyond it read as this.
_NO_LIMIT = 8192
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class _PartCounts:
    num_empty_texts: int
    num_empty_titles: int
    lengths: NDArray[np.int64]


def inspect(
    pool: Pool,
    corpus: Artifact,
    dataset: Artifact,
    output: Folder | None = None,
    *,
    model: ModelConfig,
    settings: EvaluateConfig,
    train_split: str,
    seed: int,
) -> InspectionReport:
    """Count and measure a corpus and a data set, show it, and say what deserves a look.

    Each part of the corpus and each split is looked at by a task of its own. Lengths are those of a seeded sample with
    the tokenizer, prefix and maximum length of the model.

    Args:
        pool: where they are looked at.
        corpus: the passages.
        dataset: queries, judgments and negatives.
        output: folder for ``inspection.json``; none is written if None.
        model: its tokenizers.
        settings: how answers are found in passages, and for which queries.
        train_split: the split that examples are taken from, if there is one of that name.
        seed: of the samples.

    Raises:
        DataError: the data set was made with another corpus.
    """
    passages, data = Corpus(corpus), Dataset(dataset)
    data.require_corpus(corpus)
    of_split = (corpus.folder, dataset.folder, model, settings, seed)
    calls: list[tuple[Any, ...]] = [
        ("duplicates", _count_duplicates, corpus.folder),
        *((("split", split), _look_at_split, *of_split, split) for split in data.splits),
        *((("part", at), _look_at_part, corpus.folder, model, seed, at) for at in range(len(passages.part_names))),
    ]
    found = dict(pool.map(_told, calls, "inspect"))
    parts: list[_PartCounts] = [found["part", at] for at in range(len(passages.part_names))]
    examples = [found["split", split][1] for split in sorted(data.splits, key=lambda split: split != train_split)]
    report = InspectionReport(
        corpus_fingerprint=passages.fingerprint,
        dataset_fingerprint=data.fingerprint,
        corpus=CorpusReport(
            num_passages=len(passages),
            num_duplicates=found["duplicates"],
            num_empty_texts=sum(part.num_empty_texts for part in parts),
            num_empty_titles=sum(part.num_empty_titles for part in parts),
            lengths=measure_lengths(np.concatenate([part.lengths for part in parts]), model.side("passage").max_length),
        ),
        splits={split: found["split", split][0] for split in data.splits},
        examples=next(filter(None, examples), []),
    )
    show_report(report)
    if output is not None:
        output.write_json(REPORT, report.model_dump(mode="json"))
        say(f"the same as JSON: {output.path(REPORT)}")
    return report


def _told(what: object, look: Callable[..., object], *arguments: object) -> tuple[object, object]:
    """What was looked at and what was seen: results come in any order."""
    return what, look(*arguments)


def _look_at_part(corpus: Folder, model: ModelConfig, seed: int, part: int) -> _PartCounts:
    opened = Corpus.open(corpus)
    table = opened.part(part)
    # Each part gives its share of the sample, so the sample does not need a look at all ids.
    wanted = min(len(table), -(-PASSAGE_SAMPLE * len(table) // len(opened)))
    rows = query_rng(seed, 0, opened.part_names[part], "inspect").choice(len(table), wanted, replace=False)
    sample = table.take(np.sort(rows))
    lengths = _token_counter(model, "passage")(sample["title"].to_pylist(), sample["text"].to_pylist())
    return _PartCounts(count_blank(table["text"]), count_blank(table["title"]), lengths)


def _look_at_split(
    corpus: Folder, dataset: Folder, model: ModelConfig, settings: EvaluateConfig, seed: int, split: str
) -> tuple[SplitReport, list[Example]]:
    data = Dataset.open(dataset)
    looking = SplitInspection(data.queries(split), data.qrels(split), data.negatives(split), Corpus.open(corpus), seed)
    report = looking.report(
        _token_counter(model, "query"),
        model.side("query").max_length,
        settings.answer_match,
        settings.answer_query_prefixes,
        QUERY_SAMPLE,
    )
    return report, looking.examples(split, NUM_EXAMPLES)


def _count_duplicates(corpus: Folder) -> int:
    opened = Corpus.open(corpus)
    return count_duplicates(opened.content_hashes(np.arange(len(opened))))


def _token_counter(model: ModelConfig, side: Side) -> TokenCounter:
    """Counts tokens with the tokenizer of one side, without cutting."""
    from raydr.models.checkpoint import resolve_checkpoint
    from raydr.models.tokens import TextTokenizer

    uncut = model.model_copy(update={side: model.side(side).model_copy(update={"max_length": _NO_LIMIT})})
    name = model.passage_checkpoint if side == "passage" and model.towers == "two" else ""
    tokenizer = TextTokenizer(resolve_checkpoint(name or model.checkpoint), uncut, side)
    return lambda titles, texts: tokenizer(titles, texts).lengths


def show_report(report: InspectionReport) -> None:
    """Print tables, findings and examples."""
    corpus = report.corpus
    show_summary(
        "corpus",
        {
            "passages": f"{corpus.num_passages:,}",
            "copies of other passages": f"{corpus.num_duplicates:,}",
            "empty texts": f"{corpus.num_empty_texts:,}",
            "without a title": f"{corpus.num_empty_titles:,}",
            "fingerprint": report.corpus_fingerprint,
        },
    )
    splits = list(report.splits.items())
    show_table(
        f"data set {report.dataset_fingerprint}",
        ["", *report.splits],
        [[label, *(f"{value:,}" for value in values)] for label, values in _split_rows(report)],
    )
    show_table(
        "tokens (of a sample; with special tokens and prefix): percentiles, model's max_length, share that it cuts",
        ["", "50 %", "95 %", "99 %", "longest", "kept", "cut", f"0 to {corpus.lengths.edges[-1]}+"],
        [_length_cells("passages", corpus.lengths), *(_length_cells(split, one.lengths) for split, one in splits)],
    )
    for finding in report.findings():
        warn(finding)
    for number, example in enumerate(report.examples, start=1):
        console.print(f"\nexample {number} of {len(report.examples)} ({example.split})", style="bold")
        say(_show_example(example))


def _split_rows(report: InspectionReport) -> list[tuple[str, list[int]]]:
    splits = list(report.splits.values())
    rows = [
        ("queries", [one.num_queries for one in splits]),
        ("judgments", [one.num_judgments for one in splits]),
        ("positives", [one.num_positives for one in splits]),
        ("most positives of a query", [one.most_positives for one in splits]),
        ("queries without a positive", [one.num_queries_without_positive for one in splits]),
        ("queries sharing a positive with another", [one.num_queries_sharing_a_positive for one in splits]),
        ("queries with a repeated text", [one.num_queries_with_repeated_text for one in splits]),
        ("empty queries", [one.num_empty_queries for one in splits]),
        ("judgments of missing passages", [one.num_judgments_of_missing_passages for one in splits]),
        ("judgments of missing queries", [one.num_judgments_of_missing_queries for one in splits]),
        ("negatives", [one.num_negatives for one in splits]),
        ("queries with negatives", [one.num_queries_with_negatives for one in splits]),
        ("negatives equal to a positive", [one.num_negatives_equal_to_a_positive for one in splits]),
    ]
    for kind in sorted({kind for one in splits for kind in one.noise}):
        rows.append((f"injected noise: {kind}", [one.noise.get(kind, 0) for one in splits]))
    if any(one.answers for one in splits):
        answers = [one.answers for one in splits]
        rows += [
            ("queries looked at for answers", [one.num_queries if one else 0 for one in answers]),
            (
                "  no answer in any positive",
                [one.num_queries_without_answer_in_positives if one else 0 for one in answers],
            ),
            ("  their negatives", [one.num_negatives if one else 0 for one in answers]),
            ("  negatives with an answer", [one.num_negatives_with_answer if one else 0 for one in answers]),
        ]
    return rows


def _length_cells(name: str, lengths: Lengths) -> list[str]:
    tallest = max(lengths.histogram) or 1
    levels = [str(lengths.percentiles[level]) for level in ("50", "95", "99")]
    bars = "".join(" ▁▂▃▄▅▆▇█"[-(-8 * count // tallest)] for count in lengths.histogram)
    return [name, *levels, str(lengths.longest), str(lengths.max_length), f"{lengths.share_truncated:.1%}", bars]


def _show_example(example: Example) -> str:
    lines = [f"query     {example.query_id}: {_cut(example.query)}"]
    if example.answers:
        lines.append(f"answers   {', '.join(example.answers[:5])}")
    lines.append(f"positive  {example.positive_id}: {_cut(example.positive)}")
    if example.source:
        lines.append(f"          from {example.source}")
    if example.negative is not None:
        lines.append(f"negative  {example.negative_id}: {_cut(example.negative)}")
    return "\n".join(lines)


def _cut(text: str) -> str:
    text = shown(text).replace("\n", "\n          ")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} [...]"
