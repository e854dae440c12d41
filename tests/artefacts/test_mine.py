"""Mining: windows, provenance, and what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_artefacts import make_corpus, make_dataset
from made_evaluation import make_run
from made_stage import interrupt, make

from raydr.artefacts.negatives import mine
from raydr.artefacts.run import KIND
from raydr.data.dataset import read_split
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.negatives.config import NegativesConfig
from raydr.store.artifact import Artifact

TEXTS = ["alpha river", "beta city", "Alpha  RIVER", "gamma forest", "delta island", "epsilon bridge"]


@pytest.fixture
def data(tmp_path: Path) -> tuple[Artifact, Artifact]:
    passages = [{"passage_id": f"p{at}", "title": "", "text": text} for at, text in enumerate(TEXTS)]
    corpus = make_corpus(tmp_path / "corpus", passages, part_rows=4)
    queries = [{"query_id": name, "text": name} for name in ("q0", "q1", "q2", "q3")]
    qrels = [
        {"query_id": "q0", "passage_id": "p0"},
        {"query_id": "q1", "passage_id": "p1"},
        {"query_id": "q1", "passage_id": "p3", "relevance": 0},
        {"query_id": "q2", "passage_id": "p5"},
        {"query_id": "q3", "passage_id": "p4"},
    ]
    own = [
        {"query_id": "q1", "passage_id": "p4", "miner": "source:hard", "rank": 2, "score": 3.0},
        {"query_id": "q0", "passage_id": "p2", "miner": "source:hard", "rank": 1},
        {"query_id": "q0", "passage_id": "p5", "miner": "source:random", "rank": 1},
        {"query_id": "q0", "passage_id": "p4", "miner": "source:hard", "rank": 3},
        {"query_id": "q1", "passage_id": "p0", "miner": "source:hard", "rank": 1, "score": 4.0, "positive_score": 9.0},
    ]
    tables = {"queries": {"train": queries}, "qrels": {"train": qrels}, "negatives": {"train": own}}
    return make_dataset(tmp_path / "dataset", corpus, tables).artifact, corpus.artifact


RUN = [
    *(("q0", f"p{at}", 10.0 - at) for at in range(6)),
    *(("q1", passage_id, score) for passage_id, score in (("p3", 5.0), ("p1", 4.0), ("p0", 3.0))),
    ("q2", "p5", 1.0),
]


def open_run(path: Path, rows: list[tuple[str, str, float]], queries_per_part: int = 3) -> Artifact:
    return Artifact.open(make_run(path, rows, queries_per_part), KIND)


def mined(
    output: Path,
    data: tuple[Artifact, Artifact],
    run: Artifact | None,
    miner: str,
    round: int = 0,
    pool: Pool | None = None,
    **settings: int,
) -> Artifact:
    return make(
        output,
        "negatives",
        mine,
        *data,
        run,
        pool=pool,
        settings=NegativesConfig(**settings),
        split="train",
        miner=miner,
        round=round,
    )


def rows_of(made: Artifact) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_split(made, "negatives", "train").to_pylist()
    return rows


def test_window_after_dropping_with_provenance(tmp_path: Path, data: tuple[Artifact, Artifact], pool: Pool) -> None:
    run = open_run(tmp_path / "run", RUN, 2)
    made = mined(tmp_path / "mined", data, run, "ann", 3, pool, first_rank=2, depth=2)
    # q0: p0 is the positive and p2 says the same, so the rest is p1, p3, p4, p5.
    negatives = [
        (row["query_id"], row["passage_id"], row["rank"], row["score"], row["positive_score"]) for row in rows_of(made)
    ]
    assert negatives == [("q0", "p3", 4, 7.0, 10.0), ("q0", "p4", 5, 6.0, 10.0), ("q1", "p0", 3, 3.0, 4.0)]
    assert {(row["miner"], row["round"], row["action"], row["weight"]) for row in rows_of(made)} == {
        ("ann", 3, "keep", 1.0)
    }
    counts = {name: made.info[name] for name in ("queries", "queries_without_negatives", "queries_short", "negatives")}
    assert counts == {"queries": 4, "queries_without_negatives": 2, "queries_short": 1, "negatives": 3}
    assert (made.info["dropped_positive"], made.info["dropped_identical"]) == (3, 1)


def test_source_negatives_are_filtered_in_the_same_way(
    tmp_path: Path, data: tuple[Artifact, Artifact], pool: Pool
) -> None:
    made = mined(tmp_path / "mined", data, None, "source", pool=pool)
    negatives = [
        (row["query_id"], row["passage_id"], row["miner"], row["rank"], row["positive_score"]) for row in rows_of(made)
    ]
    assert negatives == [
        ("q0", "p4", "source:hard", 3, None),
        ("q0", "p5", "source:random", 1, None),
        ("q1", "p0", "source:hard", 1, 9.0),
        ("q1", "p4", "source:hard", 2, None),
    ]
    assert (made.info["queries_without_negatives"], made.info["dropped_identical"]) == (2, 1)


@pytest.mark.invariant
def test_result_does_not_depend_on_the_parts_of_the_run(tmp_path: Path, data: tuple[Artifact, Artifact]) -> None:
    rows = []
    for parts in (1, 3):
        run = open_run(tmp_path / f"run{parts}", RUN, parts)
        made = mined(tmp_path / f"mined{parts}", data, run, "bm25")
        rows.append(rows_of(made))
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6


def test_counts_of_an_interrupted_attempt_are_not_lost(tmp_path: Path, data: tuple[Artifact, Artifact]) -> None:
    run = open_run(tmp_path / "run", RUN, 1)
    made = mined(tmp_path / "mined", data, run, "bm25")
    first = made.parts()[0]
    stamp = Path(made.folder.path(first)).stat().st_mtime_ns
    interrupt(made, first)
    again = mined(tmp_path / "mined", data, run, "bm25")
    assert (again.info, again.manifest.parts) == (made.info, made.manifest.parts)
    assert Path(again.folder.path(first)).stat().st_mtime_ns == stamp


def test_what_does_not_fit_is_refused(tmp_path: Path, data: tuple[Artifact, Artifact]) -> None:
    other = open_run(tmp_path / "other", [("x9", "p1", 1.0)])
    with pytest.raises(DataError, match=r"^the run at .* has 1 queries .* the first is 'x9'"):
        mined(tmp_path / "mined", data, other, "bm25")
    unknown = open_run(tmp_path / "unknown", [("q0", "p77", 1.0)])
    with pytest.raises(DataError, match="'p77'"):
        mined(tmp_path / "none", data, unknown, "bm25")
    with pytest.raises(ConfigError, match="miner 'bm25' needs a run"):
        mined(tmp_path / "none", data, None, "bm25")
    with pytest.raises(ConfigError, match="miner 'source' takes no run"):
        mined(tmp_path / "source", data, unknown, "source")


@pytest.mark.parametrize("first_rank", [1, 2])
def test_a_first_rank_that_can_be_no_lower_is_no_remedy(
    tmp_path: Path, data: tuple[Artifact, Artifact], pool: Pool, capsys: pytest.CaptureFixture[str], first_rank: int
) -> None:
    mined(tmp_path / "mined", data, None, "source", pool=pool, first_rank=first_rank)
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "have no negative that came with the data" in shown
    assert ("lower negatives.first_rank (2) or mine others" in shown) == (first_rank == 2)
    assert ("first_rank" in shown) == (first_rank == 2)


def test_what_is_no_negative_of_a_query_is_not_mined_for_it(tmp_path: Path) -> None:
    """Such as a positive of the same text under another query id."""
    passages = [{"passage_id": f"p{at}", "title": "", "text": text} for at, text in enumerate(TEXTS)]
    corpus = make_corpus(tmp_path / "corpus", passages)
    tables = {
        "queries": {"train": [{"query_id": "q0", "text": "q"}]},
        "qrels": {"train": [{"query_id": "q0", "passage_id": "p1"}]},
        "dropped": {"train": [{"query_id": "q0", "passage_id": "p0", "miner": "same query"}]},
    }
    data = make_dataset(tmp_path / "dataset", corpus, tables).artifact, corpus.artifact
    run = open_run(tmp_path / "run", [("q0", f"p{at}", 10.0 - at) for at in range(6)])
    made = mined(tmp_path / "mined", data, run, "bm25")
    # p2 is a copy of p0.
    assert [row["passage_id"] for row in rows_of(made)] == ["p3", "p4", "p5"]
    assert rows_of(made)[0]["positive_score"] == 9.0
