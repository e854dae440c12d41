"""Inspection of a prepared data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydr.component import Config
from raydr.console import console, say, show_summary, show_table, shown, warn
from raydr.data import Corpus, Dataset
from raydr.data.inspection import SplitInspection, count_blank, count_duplicates, count_leaks
from raydr.data.inspection_report import (
    AnswerReport,
    CorpusReport,
    Example,
    InspectionReport,
    Lengths,
    SplitReport,
    measure_lengths,
)
from raydr.distributed.pool import Pool
from raydr.evaluation.config import EvaluateConfig
from raydr.models.checkpoint import resolve_checkpoint
from raydr.models.config import ModelConfig, Side
from raydr.models.tokens import TextTokenizer
from raydr.seeding import query_rng
from raydr.store import Artifact, Folder

#: From titles (None for queries) and texts to numbers of tokens before truncation, with special tokens and prefix.
TokenCounter = Callable[[list[str] | None, list[str]], NDArray[np.int64]]
#: Passages of the sample whose tokens are counted.
PASSAGE_SAMPLE = 10_000
NUM_EXAMPLES = 3
REPORT = "inspection.json"
#: Maximum of a measured length, above the maximum of models.
_NO_LIMIT = 8192
_SHOWN_CHARACTERS = 300


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
    """Measure a corpus and a data set, and print counts, lengths and findings.

    A task inspects a part of the corpus, or a split. Lengths are those of a seeded sample, by the model's tokenizer,
    prefix and maximum length.

    Args:
        pool: pool of the tasks.
        corpus: passages.
        dataset: queries, judgments and negatives.
        output: folder for ``inspection.json``; None writes no file.
        model: model whose tokenizers count.
        settings: rule that matches answers, and its queries.
        train_split: split of the examples, if it exists.
        seed: seed of the samples.
    """
    passages, data = Corpus(corpus), Dataset(dataset)
    splits = data.splits
    calls: list[tuple[Any, ...]] = [
        (count_duplicates, passages),
        (count_leaks, data, train_split, train_split),
        *((_look_at_split, passages, data, model, settings, seed, split) for split in splits),
        *((_look_at_part, passages, model, seed, at) for at in range(len(passages.part_names))),
    ]
    num_duplicates, num_leaked, *results = pool.map(_call, calls, "inspect")
    of_splits = dict(zip(splits, results[: len(splits)], strict=True))
    blank_texts, blank_titles, lengths = zip(*results[len(splits) :], strict=True)
    examples = [of_splits[split][1] for split in sorted(splits, key=lambda split: split != train_split)]
    report = InspectionReport(
        corpus_fingerprint=passages.fingerprint,
        dataset_fingerprint=data.fingerprint,
        corpus=CorpusReport(
            num_passages=len(passages),
            num_duplicates=num_duplicates,
            num_empty_texts=sum(blank_texts),
            num_empty_titles=sum(blank_titles),
            lengths=measure_lengths(np.concatenate(lengths), model.side("passage").max_length),
        ),
        splits={split: report for split, (report, _) in of_splits.items()},
        num_leaked=num_leaked,
        examples=next(filter(None, examples), []),
    )
    show_report(report)
    if output is not None:
        output.write_json(REPORT, report.model_dump(mode="json"))
        say(f"the same as JSON: {output / REPORT}")
    return report


def _call(look: Callable[..., object], *arguments: object) -> object:
    return look(*arguments)


def _look_at_part(corpus: Corpus, model: ModelConfig, seed: int, part: int) -> tuple[int, int, NDArray[np.int64]]:
    """Return the number of empty texts and of empty titles, and the lengths of a sample."""
    table = corpus.part(part)
    # Each part contributes its share of the sample.
    wanted = min(len(table), -(-PASSAGE_SAMPLE * len(table) // len(corpus)))
    rows = query_rng(seed, 0, corpus.part_names[part], "inspect").choice(len(table), wanted, replace=False)
    sample = table.take(np.sort(rows))
    lengths = token_counter(model, "passage")(sample["title"].to_pylist(), sample["text"].to_pylist())
    return count_blank(table["text"]), count_blank(table["title"]), lengths


def _look_at_split(
    corpus: Corpus, data: Dataset, model: ModelConfig, settings: EvaluateConfig, seed: int, split: str
) -> tuple[SplitReport, list[Example]]:
    looking, counter = SplitInspection.of(data, corpus, split, seed), token_counter(model, "query")

    def lengths(texts: list[str]) -> Lengths:
        return measure_lengths(counter(None, texts), model.side("query").max_length)

    report = looking.report(settings.answer_match, settings.answer_query_prefixes, lengths=lengths)
    return report, looking.examples(split, NUM_EXAMPLES)


def token_counter(model: ModelConfig, side: Side) -> TokenCounter:
    """Return a function that counts tokens of a side before truncation."""
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
        [[label, *(f"{value:,}" for value in values)] for label, values in _split_rows(report).items()],
    )
    show_table(
        "tokens (of a sample; with special tokens and prefix): percentiles, model's max_length, share that it cuts",
        ["", "50 %", "95 %", "99 %", "longest", "kept", "cut"],
        [
            _length_cells("passages", corpus.lengths),
            *(_length_cells(split, of_split.lengths) for split, of_split in splits if of_split.lengths is not None),
        ],
    )
    for finding in report.findings():
        warn(finding)
    for number, example in enumerate(report.examples, start=1):
        console.print(f"\nexample {number} of {len(report.examples)} ({example.split})", style="bold")
        say(_show_example(example))


def _split_rows(report: InspectionReport) -> dict[str, list[int]]:
    """Return the counts of all splits by display name."""
    splits = list(report.splits.values())
    rows = {_words(name): [getattr(of_split, name) for of_split in splits] for name in _counts(SplitReport)}
    for kind in sorted({kind for of_split in splits for kind in of_split.noise}):
        rows[f"injected noise: {kind}"] = [of_split.noise.get(kind, 0) for of_split in splits]
    if any(of_split.answers for of_split in splits):
        for name in _counts(AnswerReport):
            rows[f"looked at for answers: {_words(name)}"] = [getattr(of_split.answers, name, 0) for of_split in splits]
    return rows


def _counts(section: type[Config]) -> list[str]:
    return [name for name, field in section.model_fields.items() if field.annotation is int]


def _words(name: str) -> str:
    return name.removeprefix("num_").replace("_", " ")


def _length_cells(name: str, lengths: Lengths) -> list[str]:
    levels = [str(lengths.percentiles[level]) for level in ("50", "95", "99")]
    return [name, *levels, str(lengths.longest), str(lengths.max_length), f"{lengths.share_truncated:.1%}"]


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
