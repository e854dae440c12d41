"""Evaluation as a stage: figures, files, and runs that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from artefacts import make_corpus, make_dataset
from made_evaluation import config_for, make_run

from raydr.data.corpus import Corpus
from raydr.errors import ConfigError, DataError
from raydr.stages.evaluate import evaluate, load_result
from raydr.store.folder import Folder

pytestmark = pytest.mark.ray

QUERIES = [f"{kind}{at}" for kind in ("nq", "boolq") for at in range(4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, ray_local: None) -> tuple[Path, Folder, Folder]:
    """8 judged queries with p0 ... p7 as positives; query 7 has no answers. Passage at says 'city at'."""
    folder = tmp_path_factory.mktemp("evaluate")
    passages = [{"passage_id": f"p{at}", "title": f"city {at + 1}", "text": f"The City {at}."} for at in range(20)]
    corpus = make_corpus(folder / "corpus", passages)
    queries = [
        {"query_id": name, "text": name, "answers": [f"city {at}"] if at < 7 else None}
        for at, name in enumerate(QUERIES)
    ]
    qrels = [{"query_id": name, "passage_id": f"p{at}"} for at, name in enumerate(QUERIES)]
    dataset = make_dataset(folder / "dataset", corpus, {"queries": {"dev": queries}, "qrels": {"dev": qrels}})
    return folder, corpus.artifact.folder, dataset.artifact.folder


def run_with_positive_at(
    path: Path, ranks: list[int | None], extra: list[tuple[str, str, float]] | None = None
) -> Folder:
    """A run with the positive of each query at a rank from 1, or without any row for None."""
    rows: list[tuple[str, str, float]] = []
    for at, rank in enumerate(ranks):
        if rank is not None:
            ids = [f"p{10 + other}" for other in range(6)]
            ids.insert(rank - 1, f"p{at}")
            rows += [(QUERIES[at], one, float(-position)) for position, one in enumerate(ids)]
    return make_run(path, rows + (extra or []))


SETTINGS = {
    "measures": ["R@1", "R@5", "RR@10"],
    "answer_cutoffs": [1, 5],
    "answer_query_prefixes": ["nq"],
    "bootstrap_samples": 200,
    "permutations": 500,
}


def test_figures_files_and_reuse(data: tuple[Path, Folder, Folder], capsys: pytest.CaptureFixture[str]) -> None:
    folder, corpus, dataset = data
    config = config_for(folder, evaluate=SETTINGS)
    first = run_with_positive_at(folder / "a", [1, 2, 3, 4, 5, 6, None, 1], [("zz", "p1", 1.0)])
    second = run_with_positive_at(folder / "b", [1] * 8)
    runs = {"a": first, "b": second}
    made = evaluate(config, "dev", dataset, corpus, runs, Folder(str(folder / "out")))
    result = load_result(made)
    means = {(one.system, one.measure): (one.mean, one.num_queries) for one in result.summaries}
    ranks = np.array([1, 2, 3, 4, 5, 6, np.inf, 1])
    assert means["a", "RR@10"] == (pytest.approx(np.mean(1 / ranks)), 8)
    assert means["a", "recall@5 (qrels)"] == (6 / 8, 8)
    assert means["a", "accuracy@1 (answer)"] == (1 / 4, 4)
    assert means["a", "accuracy@5 (answer)"] == (1.0, 4)
    assert means["b", "recall@1 (qrels)"] == (1.0, 8)
    assert result.counts["a"] == {"judged": 8, "without_results": 1, "with_answers": 4, "in_run_but_not_in_split": 1}
    best = next(one for one in result.comparisons if one.measure == "recall@1 (qrels)")
    assert (best.baseline, best.system, best.wins, best.losses, best.ties) == ("a", "b", 6, 0, 2)

    values = pd.read_parquet(folder / "out" / "per_query.parquet")
    assert list(values.columns) == ["query_id", "system", "measure", "value"]
    assert len(values) == 2 * (3 * 8 + 2 * 4)
    again = values[(values.system == "a") & (values.measure == "RR@10")].set_index("query_id").value
    assert again.loc["boolq2"] == 0.0
    assert (folder / "out" / "metrics.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "report.html").read_text()
    assert "recall@5 (qrels)" in page
    assert "accuracy@5 (answer)" in page
    assert 'src="data:image/png;base64,' in page

    shown = capsys.readouterr().err
    assert "recall@5 (qrels)" in shown
    assert "1 queries of the split have no result and score 0" in " ".join(shown.split())
    evaluate(config, "dev", dataset, corpus, runs, Folder(str(folder / "out")))
    assert "reused" in capsys.readouterr().err


@pytest.mark.invariant
def test_figures_do_not_depend_on_the_parts_of_the_run(data: tuple[Path, Folder, Folder]) -> None:
    folder, corpus, dataset = data
    config = config_for(folder, evaluate=SETTINGS)
    rows = [(name, f"p{(at * 3 + rank) % 12}", float(-rank)) for at, name in enumerate(QUERIES) for rank in range(8)]
    results = []
    for size in (1, 8):
        run = make_run(folder / f"parts{size}", rows, queries_per_part=size)
        made = evaluate(config, "dev", dataset, corpus, {"s": run}, Folder(str(folder / f"out{size}")))
        results.append((load_result(made), made.manifest.parts["per_query.parquet"].rows))
    assert results[0] == results[1]


def test_runs_that_do_not_fit(data: tuple[Path, Folder, Folder]) -> None:
    folder, corpus, dataset = data
    config = config_for(folder, evaluate=SETTINGS)
    other = make_run(folder / "other", [("zz", "p1", 1.0)])
    with pytest.raises(DataError, match=r"^the run of 's' .* has no query of split 'dev'"):
        evaluate(config, "dev", dataset, corpus, {"s": other}, Folder(str(folder / "bad1")))
    unknown = make_run(folder / "unknown", [("nq0", "p99", 1.0)])
    with pytest.raises(DataError, match=r"^1 of 1 passage ids .* 'p99'"):
        evaluate(config, "dev", dataset, corpus, {"s": unknown}, Folder(str(folder / "bad2")))
    with pytest.raises(ConfigError, match="at least one run"):
        evaluate(config, "dev", dataset, corpus, {}, Folder(str(folder / "bad3")))
    bad = config_for(folder, evaluate={"measures": ["Q@5"]})
    with pytest.raises(ConfigError, match="'Q@5' is not a measure"):
        evaluate(bad, "dev", dataset, corpus, {"s": unknown}, Folder(str(folder / "bad4")))


def test_questions_without_judgments_are_missed_too(
    data: tuple[Path, Folder, Folder], capsys: pytest.CaptureFixture[str]
) -> None:
    """Test sets of questions and answers alone: what a run lacks scores 0 and is counted."""
    folder, corpus, _ = data
    queries = [{"query_id": name, "text": name, "answers": [f"city {at}"]} for at, name in enumerate(QUERIES)]
    dataset = make_dataset(folder / "answers", Corpus.open(corpus), {"queries": {"dev": queries}, "qrels": {"dev": []}})
    run = run_with_positive_at(folder / "c", [1, None, None, *[1] * 5])
    config = config_for(folder, evaluate=SETTINGS | {"answer_query_prefixes": []})
    made = evaluate(config, "dev", dataset.artifact.folder, corpus, {"c": run}, Folder(str(folder / "answered")))
    counts = load_result(made).counts["c"]
    assert (counts["judged"], counts["with_answers"], counts["without_results"]) == (0, 8, 2)
    assert "2 queries of the split have no result" in " ".join(capsys.readouterr().err.split())
