"""Evaluation as a stage: figures, files, and runs that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from made_artefacts import make_corpus, make_dataset
from made_evaluation import make_run
from made_stage import make

from artefacts.test_apply_verdicts import make_verdicts
from artefacts.test_prepare import run as prepared
from raydr.artefacts import query_values
from raydr.artefacts.evaluation import _warn_if_shallow, evaluate, load_result, show
from raydr.artefacts.query_values import restrict
from raydr.data.config import DataConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import ConfigError, DataError
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import MACRO_ACCURACY, accuracies
from raydr.store.artifact import Artifact
from raydr.verbs.evaluation import Evaluations

Data = tuple[Artifact, Artifact]

QUERIES = [f"{kind}{at}" for kind in ("nq", "boolq") for at in range(4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
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
    return dataset.artifact, corpus.artifact


def run_with_positive_at(
    path: Path, ranks: list[int | None], extra: list[tuple[str, str, float]] | None = None
) -> Artifact:
    """A run with the positive of each query at a rank from 1, or without any row for None."""
    rows: list[tuple[str, str, float]] = []
    for at, rank in enumerate(ranks):
        if rank is not None:
            ids = [f"p{10 + other}" for other in range(6)]
            ids.insert(rank - 1, f"p{at}")
            rows += [(QUERIES[at], passage_id, float(-position)) for position, passage_id in enumerate(ids)]
    return run_of(path, rows + (extra or []))


def run_of(path: Path, rows: list[tuple[str, str, float]], queries_per_part: int = 3) -> Artifact:
    return Artifact.open(make_run(path, rows, queries_per_part), "run")


SETTINGS = {
    "measures": ["R@1", "R@5", "RR@10"],
    "answer_cutoffs": [1, 5],
    "answer_query_prefixes": ["nq"],
    "bootstrap_samples": 200,
    "permutations": 500,
}


def evaluation_of(
    data: Data, runs: dict[str, Artifact], output: Path, pool: Pool | None = None, **changes: Any
) -> Artifact:
    settings = EvaluateConfig(**SETTINGS | changes)
    return make(output, "evaluation", evaluate, *data, runs, pool=pool, settings=settings, split="dev", seed=0)


@pytest.mark.invariant
def test_measures_are_trec_evals_on_the_judgments_as_they_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged passages that are not in the corpus, or whose row is bad, are passages that nothing finds."""
    import pytrec_eval

    source, passages = tmp_path / "beir", [f"p{at}" for at in range(12)]
    (source / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": "", "text": f"text {name}"} for name in passages]
    rows += [{"_id": "blank", "title": " ", "text": " "}, {"_id": "titled", "title": "a title", "text": ""}]
    (source / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Of q2 nothing that is relevant is there; q3 finds a passage that has a title alone.
    qrels = {
        "q0": {"p0": 1, "gone": 2, "p1": 0}, "q1": {"p1": 3, "blank": 1}, "q2": {"gone": 1}, "q3": {"titled": 1},
        "q4": {"p2": 0},
    }  # fmt: skip
    (source / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": query_id, "text": query_id}) + "\n" for query_id in qrels)
    )
    lines = [f"{query}\t{passage}\t{grade}" for query, of in qrels.items() for passage, grade in of.items()]
    (source / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    reader = {"name": "beir", "path": str(source)}
    config = DataConfig.model_validate(
        {"reader": reader, "train_split": "dev", "dev_split": "", "test_splits": [], "max_bad_rows": 5}
    )
    corpus, dataset = prepared(config, tmp_path / "made")
    assert "judgments name passages that no search can find (3 of dev)" in capsys.readouterr().err.replace("\n", " ")
    assert Dataset(dataset).qrels("dev").num_rows == 5
    ranking = {query: ["p0", "p1", "titled", "p2", "p3"] for query in qrels}
    made_run = run_of(
        tmp_path / "run",
        [(query, passage, -float(at)) for query in ranking for at, passage in enumerate(ranking[query])],
    )
    measures = {"R@5": "recall_5", "nDCG@5": "ndcg_cut_5", "AP": "map", "RR@5": "recip_rank"}
    made = evaluation_of(
        (dataset, corpus), {"a": made_run}, tmp_path / "out", measures=list(measures), answer_cutoffs=[]
    )
    scores = {query: {passage: -float(at) for at, passage in enumerate(ranking[query])} for query in qrels}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(measures.values())).evaluate(scores)
    means = list(made.info["means"]["a"].values())
    expected = [np.mean([of[name] for of in theirs.values()]) for name in measures.values()]
    np.testing.assert_allclose(means, expected, atol=1e-9)
    show(made)
    err = " ".join(capsys.readouterr().err.split())
    assert "3 judgments name passages that are not in the corpus" in err
    assert "1 of 5 judged queries have no positive, and score 0 in each mean" in err


def test_figures_and_files(data: Data, pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_with_positive_at(tmp_path / "a", [1, 2, 3, 4, 5, 6, None, 1], [("zz", "p1", 1.0)])
    second = run_with_positive_at(tmp_path / "b", [1] * 8)
    made = evaluation_of(data, {"a/1": first, "b": second}, tmp_path / "out", pool)
    result = load_result(made)
    means = {(summary.system, summary.measure): (summary.mean, summary.num_queries) for summary in result.summaries}
    ranks = np.array([1, 2, 3, 4, 5, 6, np.inf, 1])
    assert means["a/1", "RR@10"] == (pytest.approx(np.mean(1 / ranks)), 8)
    assert means["a/1", "recall@5"] == (6 / 8, 8)
    assert means["a/1", "accuracy@1 (answer)"] == (1 / 4, 4)
    assert means["a/1", "accuracy@5 (answer)"] == (1.0, 4)
    assert means["b", "recall@1"] == (1.0, 8)
    assert made.info["means"]["a/1"]["RR@10"] == means["a/1", "RR@10"][0]
    assert result.counts["a/1"] == {"judged": 8, "without_results": 1, "with_answers": 4, "in_run_but_not_in_split": 1}
    best = next(comparison for comparison in result.comparisons if comparison.measure == "recall@1")
    assert (best.baseline, best.system, best.wins, best.losses, best.ties) == ("a/1", "b", 6, 0, 2)

    values = pd.read_parquet(tmp_path / "out" / "per_query.parquet")
    assert list(values.columns) == ["query_id", "system", "measure", "value"]
    assert len(values) == 2 * (3 * 8 + 2 * 4)
    again = values[(values.system == "a/1") & (values.measure == "RR@10")].set_index("query_id").value
    assert again.loc["boolq2"] == 0.0
    assert (tmp_path / "out" / "metrics.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "recall@5" in page
    assert "accuracy@5 (answer)" in page
    assert 'src="data:image/png;base64,' in page
    assert first.fingerprint in page
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*made.parts(), "manifest.json"}

    capsys.readouterr()
    show(made)
    shown = capsys.readouterr().err
    assert "recall@5" in shown
    assert "1 queries of the split have no result and score 0" in " ".join(shown.split())


def ranked_rows() -> list[tuple[str, str, float]]:
    return [(name, f"p{(at * 3 + rank) % 12}", float(-rank)) for at, name in enumerate(QUERIES) for rank in range(8)]


@pytest.mark.invariant
def test_figures_do_not_depend_on_the_parts_of_the_run(data: Data, tmp_path: Path) -> None:
    made = [
        evaluation_of(data, {"s": run_of(tmp_path / f"parts{size}", ranked_rows(), size)}, tmp_path / f"out{size}")
        for size in (1, 8)
    ]
    alone, other = (load_result(evaluation) for evaluation in made)
    assert alone == other
    assert len({evaluation.manifest.parts["per_query.parquet"].checksum for evaluation in made}) == 1


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_both_pools_write_the_same_bytes(data: Data, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ranked_rows())
    here, there = (
        evaluation_of(data, {"s": run}, tmp_path / type(pool).__name__, pool) for pool in (ThisProcess(), RayPool())
    )
    assert here.manifest.parts == there.manifest.parts


@pytest.mark.invariant
def test_resumed_equals_uninterrupted(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the third of three parts: the two that were scored are not scored again."""
    run = run_of(tmp_path / "run", ranked_rows())
    score, calls = query_values.score_queries, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(query_values, "score_queries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluation_of(data, {"s": run}, tmp_path / "out")
    resumed = evaluation_of(data, {"s": run}, tmp_path / "out")
    assert len(calls) == 4
    assert resumed.manifest.parts == evaluation_of(data, {"s": run}, tmp_path / "other").manifest.parts


def test_flagged_labels_and_new_positives_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 queries: those below 30 have a wrong label, which nothing finds; the positives of the even ones are known."""
    names = [f"q{at:02d}" for at in range(100)]
    # Passages of even numbers are there twice, under another id: positives are compared by their content.
    passages = [{"passage_id": f"p{at:02d}", "title": "", "text": f"text {at}"} for at in range(100)]
    passages += [{"passage_id": f"copy{at:02d}", "title": "", "text": f"text {at}"} for at in range(0, 100, 2)]
    corpus = make_corpus(tmp_path / "corpus", passages)
    qrels = [{"query_id": f"q{at:02d}", "passage_id": f"p{at:02d}"} for at in range(100)]
    trained_on = [{"query_id": f"t{at:02d}", "passage_id": f"copy{at:02d}"} for at in range(0, 100, 2)]
    tables = {
        "queries": {
            "dev": [{"query_id": name, "text": name} for name in names],
            "train": [{"query_id": row["query_id"], "text": row["query_id"]} for row in trained_on],
        },
        "qrels": {"dev": qrels, "train": trained_on},
    }
    dataset = make_dataset(tmp_path / "dataset", corpus, tables).artifact
    actions = [(f"q{at:02d}", f"p{at:02d}", "drop" if at < 30 else "keep") for at in range(100)]
    suspects = make_verdicts(tmp_path / "verdicts", "pairs", dataset, "npc", {"00000-00000": actions}, split="dev")
    run = run_of(tmp_path / "run", [(f"q{at:02d}", f"p{at if at >= 30 else 99 - at:02d}", 1.0) for at in range(100)])
    settings = EvaluateConfig(measures=["R@1"], bootstrap_samples=100, permutations=100)
    arguments = (dataset, corpus.artifact, {"s": run}, suspects)
    made = make(tmp_path / "out", "evaluation", evaluate, *arguments, settings=settings, split="dev", seed=0)
    result = load_result(made)
    assert result.summaries[0].mean == 0.7
    [flagged, new] = result.subsets
    assert (flagged.num_queries, flagged.summaries[0].mean) == (70, 1.0)
    assert "30 of 100 queries have a label that judge npc takes for wrong" in flagged.meaning
    assert (new.num_queries, new.summaries[0].mean) == (50, 0.7)
    show(made)
    printed, page = " ".join(capsys.readouterr().err.split()), made.folder.localize("report.html")
    for text in (printed, Path(page).read_text()):
        assert "30 of 100 queries have a label that" in text
    assert "without them s has recall@1 1.000" in Path(page).read_text()
    for text in (printed, Path(page).read_text()):
        assert "No positive of these queries is a positive of a query of train" in text
    # Too few are left for means of their own: their number is still printed.
    most = [(f"q{at:02d}", f"p{at:02d}", "drop" if at < 80 else "keep") for at in range(100)]
    suspects = make_verdicts(tmp_path / "most", "pairs", dataset, "npc", {"00000-00000": most}, split="dev")
    arguments = (dataset, corpus.artifact, {"s": run}, suspects)
    made = make(tmp_path / "few", "evaluation", evaluate, *arguments, settings=settings, split="dev", seed=0)
    few = load_result(made).subsets[0]
    assert (few.num_queries, few.summaries) == (20, [])
    show(made)
    printed, page = " ".join(capsys.readouterr().err.split()), made.folder.localize("report.html")
    assert "80 of 100 queries have a label that judge npc takes for wrong" in printed
    assert "Means over the others need 30 queries" in printed
    assert "80 of 100 queries have a label that is probably wrong." in Path(page).read_text()


def test_the_macro_mean_of_a_subset_is_that_of_its_worlds() -> None:
    worlds = {f"{world}{at}": world for world, size in (("a", 4), ("b", 16)) for at in range(size)}
    first = {query_id: float(world == "a") for query_id, world in worlds.items()}
    subset = [query_id for query_id in worlds if query_id.endswith(("1", "2"))]
    macro = restrict({"s": accuracies(first, worlds)}, subset, worlds)["s"][MACRO_ACCURACY]
    assert sum(macro.values()) / len(subset) == pytest.approx(0.5)


def test_runs_that_do_not_fit(data: Data, pool: Pool, tmp_path: Path) -> None:
    other = run_of(tmp_path / "other", [("zz", "p1", 1.0)])
    with pytest.raises(DataError, match=r"^the run of 's' .* has no passage for any query of split 'dev'"):
        evaluation_of(data, {"s": other}, tmp_path / "bad1", pool)
    with pytest.raises(ConfigError, match="at least one run"):
        evaluation_of(data, {}, tmp_path / "bad2", pool)


def test_a_shallow_run_is_named_with_the_settings_that_deepen_it(capsys: pytest.CaptureFixture[str]) -> None:
    _warn_if_shallow(64, "trained+ranker", cast(Artifact, SimpleNamespace(info={"top_k": 8})))
    shown = " ".join(capsys.readouterr().err.split())
    assert "8 passages a query, but a measure reads 64" in shown
    assert "set search.top_k (and rerank.depth, if a ranker orders it) to 64" in shown


@pytest.mark.parametrize(("prefixes", "warned"), [(["nq"], True), (["no such query"], False)])
def test_cutoffs_of_answers_deepen_a_run_only_where_answers_count(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str], prefixes: list[str], warned: bool
) -> None:
    run = run_with_positive_at(tmp_path / "r", [1] * 8)
    run.info["top_k"] = 7
    evaluation_of(data, {"r": run}, tmp_path / "out", answer_cutoffs=[1, 64], answer_query_prefixes=prefixes)
    assert ("a measure reads 64" in " ".join(capsys.readouterr().err.split())) is warned


def test_questions_without_judgments_are_missed_too(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test sets of questions and answers alone: what a run lacks scores 0 and is counted."""
    queries = [{"query_id": name, "text": name, "answers": [f"city {at}"]} for at, name in enumerate(QUERIES)]
    dataset = make_dataset(tmp_path / "answers", Corpus(data[1]), {"queries": {"dev": queries}, "qrels": {"dev": []}})
    run = run_with_positive_at(tmp_path / "c", [1, None, None, *[1] * 5])
    made = evaluation_of((dataset.artifact, data[1]), {"c": run}, tmp_path / "out", answer_query_prefixes=[])
    counts = load_result(made).counts["c"]
    assert (counts["judged"], counts["with_answers"], counts["without_results"]) == (0, 8, 2)
    show(made)
    assert "2 queries of the split have no result" in " ".join(capsys.readouterr().err.split())


def test_evaluations_are_shown_as_their_table(data: Data, tmp_path: Path) -> None:
    made = evaluation_of(data, {"b": run_with_positive_at(tmp_path / "b", [1, 2] * 4)}, tmp_path / "out")
    assert repr(made).startswith("<evaluation ")
    assert str(tmp_path / "out") in repr(made)
    table = Evaluations([made]).to_pandas()
    assert list(table.columns) == ["split", "system", "measure", "mean", "low", "high", "num_queries"]
    assert table[table.measure == "RR@10"]["mean"].tolist() == [0.75]
    head, _, row = repr(Evaluations([made])).splitlines()
    assert head.split() == ["measure", *table.measure.str.split().explode()]
    assert row.split()[:4] == ["dev", "b", "0.5000", "1.0000"]
    assert repr(Evaluations([])) == "Evaluations([])"


def test_accuracies_of_linking_by_world_and_category(
    tmp_path: Path, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks 1, 2, 3, 4, none and 1: of a 0.5 is right, of b 0.25, and the first 3 hold 1 and 3 of the golds."""
    passages = [{"passage_id": f"p{at}", "text": f"entity {at}"} for at in range(20)]
    corpus = make_corpus(tmp_path / "corpus", passages)
    worlds = ["a", "a", "b", "b", "b", "b"]
    queries = [
        {"query_id": name, "text": name, "partition": world, "category": "HIGH" if at % 2 else "LOW"}
        for at, (name, world) in enumerate(zip(QUERIES, worlds, strict=False))
    ]
    qrels = [{"query_id": row["query_id"], "passage_id": f"p{at}"} for at, row in enumerate(queries)]
    made = make_dataset(tmp_path / "dataset", corpus, {"queries": {"dev": queries}, "qrels": {"dev": qrels}})
    run = run_with_positive_at(tmp_path / "run", [4, 1, 2, 3, None, 1])
    changes = {"measures": ["R@3"], "answer_cutoffs": [], "linking_depth": 3}
    evaluation = evaluation_of((made.artifact, corpus.artifact), {"dense": run}, tmp_path / "out", pool, **changes)
    means = evaluation.info["means"]["dense"]
    assert means == pytest.approx({"recall@3": 4 / 6, "accuracy": 2 / 6, "accuracy, macro": (1 / 2 + 1 / 4) / 2})
    result = load_result(evaluation)
    group_values = {(group.measure, group.group): (group.mean, group.num_queries) for group in result.groups}
    label = "accuracy, normalised (top 3)"
    assert group_values[label, "micro"] == (pytest.approx(2 / 4), 4)
    assert group_values[label, "macro"] == (pytest.approx((1 / 1 + 1 / 3) / 2), 4)
    assert group_values["recall@3", "macro"] == (pytest.approx((1 / 2 + 3 / 4) / 2), 6)
    assert group_values["recall@3", "HIGH"] == (pytest.approx(3 / 3), 3)
    assert group_values["accuracy", "b"] == (pytest.approx(1 / 4), 4)
    show(evaluation)
    printed = capsys.readouterr().err
    assert "dense by category" in printed
    assert "macro" in printed
    assert "by category and partition" in (tmp_path / "out" / "report.html").read_text()
