"""Benchmark of methods that detect wrong labels, on labelled sets, and its figures.

Labels are never used in training. The figures are rows for a terminal, records for programs, and a Markdown page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.artefacts.model import untrained
from raydr.artefacts.scoring import scoring_of
from raydr.config.run import RunConfig
from raydr.data.corpus import Texts
from raydr.data.tables import write_parquet
from raydr.distributed.choose_pool import choose_pool
from raydr.errors import ConfigError
from raydr.evaluation.noise_measures import FLAGS, RANKING, MethodFigures, MethodScores, measure_method, share_by_source
from raydr.evaluation.significance import Interval
from raydr.models.config import ModelConfig
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.models.scores.sum_of_max import SumOfMax
from raydr.noise.labelled import LabelledSet, scores_on, unique_texts
from raydr.noise.vector_rules import PairVectors, judge_by_vectors
from raydr.pipeline.findings import find_mismatched
from raydr.pipeline.session import open_session

SPLIT = "train"
#: Names of the built-in methods.
METHODS = (
    "cosine", "csls", "perplexity", "late interaction", "self-confidence", "npc", "npc cross-fitted", "consistency",
    "nv-retriever", "gist", "near_duplicate", "sieve",
)  # fmt: skip
#: Number of pairs whose token vectors are held at once.
_LATE_PAIRS = 1_000
#: Epochs of each cross-fitted training.
_EPOCHS = 2
#: Training settings of the detectors, those of `raydr.find_noise`.
_TRAIN = {"batch_size": 64, "optimizer": {"learning_rate": 5e-5}}
_COLUMNS = {"query": "query", "positive": "passage", "query_id": "query_id", "passage_id": "passage_id"}


def benchmark_set(
    labelled: LabelledSet,
    model: Mapping[str, Any],
    workdir: str,
    others: Mapping[str, Mapping[tuple[str, str], float]],
    num_samples: int = 1000,
    seed: int = 0,
) -> SetFigures:
    """Apply all methods to a labelled set, and measure them.

    Args:
        labelled: the set.
        model: settings of the encoder, which is used untrained and starts the cross-fitted trainings.
        workdir: an empty folder for the artefacts, so that seconds cover the whole work.
        others: scores of further methods, by method and pair; methods without any pair of the set are left out.
        num_samples: number of bootstrap samples.
        seed: seed of all draws.

    Raises:
        DataError: a method has scores of only some pairs of the set.
        ConfigError: the encoder has several vectors for each text.
    """
    started = time.perf_counter()
    suspicions = {method: scores_on(by_pair, labelled, method) for method, by_pair in others.items()}
    config = set_config(labelled, model, workdir, seed)
    vectors, encoding_seconds = encode_set(labelled, config)
    scores = [*judge_by_vectors(vectors, seed), _late_interaction(labelled, config), *_detect(labelled, config)]
    scores += [MethodScores(method, values_N) for method, values_N in suspicions.items() if values_N is not None]
    wrong_N, query_N, sources = labelled.wrong_N, labelled.query_N, labelled.sources
    figures = [measure_method(method, wrong_N, query_N, sources, num_samples, seed) for method in scores]
    shares = {} if sources is None else share_by_source(wrong_N, query_N, sources, num_samples, seed)
    return SetFigures(labelled, figures, shares, encoding_seconds, time.perf_counter() - started)


def set_config(labelled: LabelledSet, model: Mapping[str, Any], workdir: str, seed: int) -> RunConfig:
    """Write the pairs of a set without their labels, and return the config of a run on them."""
    folder = Path(workdir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"query_id": map(str, labelled.query_N.tolist()), "query": labelled.queries}
    columns |= {"passage_id": map(str, range(len(labelled.queries))), "passage": labelled.passages}
    table = pa.table({name: pa.array(list(values), pa.string()) for name, values in columns.items()})
    write_parquet(table, str(folder / "pairs.parquet"))
    raw: dict[str, Any] = {
        "name": labelled.name,
        "workdir": str(folder),
        "seed": seed,
        "data": {
            "reader": {"name": "pairs", "path": str(folder), "files": {SPLIT: ["pairs.parquet"]}, "columns": _COLUMNS},
            "dev_split": "",
            "test_splits": [],
        },
        "model": dict(model),
        "train": _TRAIN,
        "tracking": {"enabled": False},
        "ray": {"in_process_rows": 10**9},
    }
    return RunConfig.parse(raw, "the benchmark")


def encode_set(labelled: LabelledSet, config: RunConfig) -> tuple[PairVectors, float]:
    """Encode the distinct texts of a set once for all rules; return the vectors and the seconds."""
    queries, query_N = unique_texts(labelled.queries)
    passages, passage_N = unique_texts([*labelled.passages, *(labelled.positives or ())])
    started = time.perf_counter()
    scorer = _scorer(config, config.model, "untrained")
    query_QD = scorer.encode("query", None, queries)
    passage_PD = scorer.encode("passage", [""] * len(passages), passages)
    seconds = time.perf_counter() - started
    if passage_PD.ndim > 2:
        raise ConfigError(
            f"the benchmark needs an encoder with one vector a text; {config.model.checkpoint} has several"
        )
    positive_Q = None
    if labelled.positives is not None:
        positive_Q = np.empty(len(queries), dtype=np.int64)
        positive_Q[query_N] = passage_N[len(labelled.passages) :]
    return PairVectors(query_QD, passage_PD, query_N, passage_N[: len(labelled.passages)], positive_Q), seconds


def _scorer(config: RunConfig, model: ModelConfig, name: str) -> DualEncoderScorer:
    """Load an untrained encoder."""
    with open_session(config) as session:
        context = session.recipe.context
        [made] = session.make(untrained(context, model, name))
        arithmetic = context.facts.encoding(config.encode)
        return scoring_of(choose_pool(0), made, config.encode, arithmetic).open_retriever()


def _late_interaction(labelled: LabelledSet, config: RunConfig) -> MethodScores:
    """Score pairs by token vectors: the mean over query tokens of the best similarity in the passage."""
    started = time.perf_counter()
    model = config.model.model_copy(update={"score": SumOfMax(), "projection": None})
    scorer = _scorer(config, model, "untrained-late-interaction")
    score_N = np.empty(len(labelled.queries))
    # A query's pairs may span two blocks; it is then encoded twice.
    order_N = np.argsort(labelled.query_N, kind="stable")
    for start in range(0, len(order_N), _LATE_PAIRS):
        rows_B = order_N[start : start + _LATE_PAIRS]
        queries, query_B = unique_texts([labelled.queries[at] for at in rows_B])
        texts = [labelled.passages[at] for at in rows_B]
        passages = Texts([""] * len(texts), texts)
        score_B = scorer.score(queries, passages, query_B, np.arange(len(rows_B)))
        score_N[rows_B] = score_B / scorer.tokenizers["query"](None, queries).lengths[query_B]
    sign = -1.0 if labelled.subject == "pairs" else 1.0
    return MethodScores("late interaction", sign * score_N, seconds=time.perf_counter() - started)


def _detect(labelled: LabelledSet, config: RunConfig) -> Iterator[MethodScores]:
    """Apply ``npc`` to margins of the checkpoint and, for pairs, to margins of models trained on other pairs.

    A candidate that the detector classifies as a right pair is a false negative. Cross-fitting trains on the rows as
    right pairs, so it does not apply to candidates.
    """
    epochs = {"npc": 0} | ({"npc cross-fitted": _EPOCHS} if labelled.subject == "pairs" else {})
    for method, num_epochs in epochs.items():
        cross_fit = config.cross_fit.model_copy(update={"num_epochs": num_epochs})
        yield detect_wrong_labels(labelled, method, config.model_copy(update={"cross_fit": cross_fit}))


def detect_wrong_labels(labelled: LabelledSet, method: str, config: RunConfig) -> MethodScores:
    """Apply the judge ``npc`` to a set's pairs; flag candidates that it classifies as right pairs."""
    started = time.perf_counter()
    with open_session(config) as session:
        noise = find_mismatched(session, SPLIT)
    seconds = time.perf_counter() - started
    row_N = np.array([int(passage_id) for _, passage_id in noise.pair_ids])
    mismatch_N, place_N, flagged_N = np.empty(len(row_N)), np.empty(len(row_N)), np.empty(len(row_N), dtype=np.bool_)
    mismatch_N[row_N], flagged_N[row_N] = noise.table["p_wrong"], noise.table["flagged"]
    # The table is sorted by suspicion; probabilities alone have many ties.
    place_N[row_N] = np.arange(len(row_N))
    probability_N = None if noise.reason else mismatch_N
    if labelled.subject == "pairs":
        return MethodScores(method, -place_N, flagged_N, probability_N, seconds)
    if probability_N is None:
        return MethodScores(method, place_N, flagged_N, None, seconds)
    return MethodScores(method, place_N, ~flagged_N, 1.0 - probability_N, seconds)


#: Columns of the records.
RECORD = ("set", "subject", "method", "source", "measure", "value", "low", "high")
#: The method name of records about the labels themselves.
LABELS = "labels"
_NOUNS = {"pairs": "wrong pairs", "candidates": "false negatives"}
_LEGEND = (
    "AP, P@R.5 (precision at a recall of one half) and AUROC rank all pairs by suspicion. Flags have a share, a "
    "precision and a recall. Calibration is the mean probability of flagged pairs minus their precision. Brackets are "
    "95 % bootstrap intervals over queries. Seconds exclude the encoding that rules on vectors share."
)


@dataclass(frozen=True)
class SetFigures:
    """The figures of all methods on a labelled set.

    Args:
        labelled: the set.
        methods: figures of each method.
        shares: shares of wrong labels, by source; empty without sources.
        encoding_seconds: seconds of encoding, once for all methods that read vectors.
        seconds: seconds of all methods and the encoding.
    """

    labelled: LabelledSet
    methods: list[MethodFigures]
    shares: dict[str, Interval]
    encoding_seconds: float
    seconds: float

    @property
    def title(self) -> str:
        """The set, its size and its share of wrong labels."""
        labelled = self.labelled
        wrong = f"{labelled.wrong_N.mean():.1%} {_NOUNS[labelled.subject]}"
        queries = len(set(labelled.queries))
        return f"{labelled.name}: {len(labelled.queries):,} {labelled.subject} of {queries:,} queries, {wrong}"

    @property
    def ranked(self) -> list[MethodFigures]:
        """The methods, the highest average precision first."""
        return sorted(self.methods, key=lambda figures: -figures.measures[RANKING[0]].mean)


def terminal_rows(figures: SetFigures) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of a table for 80 columns: rounded, with an interval (±) only for the first measure."""
    columns = ["method", *RANKING, "flags", "prec.", "rec.", "cal."]
    rows = []
    for method in figures.ranked:
        first, *others = (method.measures.get(name) for name in (*RANKING, *FLAGS))
        assert first is not None
        average = f"{_digits(first.mean, 2)}±{_digits((first.high - first.low) / 2, 2)}"
        cells = ["" if interval is None else _digits(interval.mean, 2) for interval in others]
        rows.append([method.method, average, *cells])
    return columns, rows


def source_rows(figures: SetFigures) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows by source: the share of wrong labels, and the share that each method flags."""
    flagging = [method for method in figures.methods if method.flags_by_source]
    columns = ["source", "wrong", *(f"{method.method} flags" for method in flagging)]
    rows = [
        [source, _interval(share), *(_interval(method.flags_by_source.get(source)) for method in flagging)]
        for source, share in figures.shares.items()
    ]
    return columns, rows


def records(figures: SetFigures) -> Iterator[dict[str, Any]]:
    """Yield a record for each figure, with the columns :data:`RECORD`."""
    labelled = figures.labelled
    of_set = {"set": labelled.name, "subject": labelled.subject}

    def record(method: str, source: str, measure: str, interval: Interval) -> dict[str, Any]:
        values = (interval.mean, interval.low, interval.high)
        return dict(zip(RECORD, (*of_set.values(), method, source, measure, *values), strict=True))

    for source, share in figures.shares.items():
        yield record(LABELS, source, "wrong", share)
    for method in figures.methods:
        for measure, interval in method.measures.items():
            yield record(method.method, "", measure, interval)
        for source, interval in method.flags_by_source.items():
            yield record(method.method, source, "flagged", interval)
        if method.seconds is not None:
            yield record(method.method, "", "seconds", Interval(*[method.seconds] * 3))


def markdown(results: Sequence[SetFigures], command: str) -> str:
    """Return a Markdown page on several sets.

    Args:
        results: results of each set.
        command: the command that made the results.
    """
    lines = ["```bash", command, "```", "", _LEGEND]
    for figures in results:
        lines += ["", f"### {figures.labelled.name}", "", f"{figures.title}. {_left_out(figures)}"]
        lines += [f"Encoding took {figures.encoding_seconds:.0f} s, all {figures.seconds:.0f} s.", ""]
        rows = [
            [
                f"`{method.method}`",
                *(_interval(method.measures.get(name)) for name in (*RANKING, *FLAGS)),
                _seconds(method.seconds),
            ]
            for method in figures.ranked
        ]
        lines += _table(["method", *RANKING, *FLAGS, "seconds"], rows)
        if figures.shares:
            lines += ["", "By source:", "", *_table(*source_rows(figures))]
    return "\n".join(lines) + "\n"


def _left_out(figures: SetFigures) -> str:
    counts = [f"{count:,} {reason}" for reason, count in figures.labelled.left_out.items() if count]
    return f"Rows left out: {', '.join(counts)}." if counts else "No row is left out."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def _interval(interval: Interval | None) -> str:
    """
    >>> _interval(Interval(0.5, 0.456, 0.543)), _interval(None)
    ('.500 [.456, .543]', '')
    """
    return "" if interval is None else "{} [{}, {}]".format(*map(_digits, interval))


def _digits(value: float, num: int = 3) -> str:
    """
    >>> _digits(0.25), _digits(-0.25, 2), _digits(1.0)
    ('.250', '-.25', '1.000')
    """
    return f"{value:.{num}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{num}f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
