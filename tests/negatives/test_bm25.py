"""BM25 against its formula, and what it does with odd queries."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import make_sentence

from raydr.data.rows import join_passage
from raydr.negatives.bm25 import INDEX_FILES, BM25Index, CorpusStatistics, build_shard
from raydr.negatives.config import BM25Config
from raydr.negatives.terms import Analyzer, TermCounts, add_up

CONFIG = BM25Config(stemmer="none", stopwords="none", k1=1.2, b=0.6)
TEXTS = [make_sentence(seed, 5 + seed % 17) for seed in range(80)] + ["", "!!! ?"]


def build(
    texts: list[str], config: BM25Config, folder: Path, part_size: int = 7, shard_parts: int = 10**6
) -> BM25Index:
    analyzer = Analyzer(config)
    parts = [analyzer.count(texts[start : start + part_size]) for start in range(0, len(texts), part_size)]
    shards = [parts[start : start + shard_parts] for start in range(0, len(parts), shard_parts)]
    frequencies = add_up([part.frequencies() for part in parts])
    # As in a large corpus, whose terms are added up in ranges.
    ranges = [frequencies.slice(0, len(frequencies) // 2), frequencies.slice(len(frequencies) // 2)]
    statistics = CorpusStatistics(len(texts), sum(part.num_tokens for part in parts), ranges)

    def place(shard: int) -> Path:
        return folder if len(shards) == 1 else folder / str(shard)

    def loader(part: TermCounts) -> Callable[[], TermCounts]:
        return lambda: part

    for shard, of_shard in enumerate(shards):
        build_shard(list(map(loader, of_shard)), statistics, config, place(shard))
    paths = [{name: str(place(shard) / name) for name in INDEX_FILES} for shard in range(len(shards))]
    return BM25Index(paths, list(range(0, len(texts), part_size * shard_parts)), config)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> BM25Index:
    return build(TEXTS, CONFIG, tmp_path_factory.mktemp("bm25"))


def reference_scores(query: str) -> list[float]:
    """Lucene's BM25, with exact lengths, as in Kamphuis et al. (ECIR 2020)."""
    passages = [text.split() if "!" not in text else [] for text in TEXTS]
    average = sum(map(len, passages)) / len(passages)
    scores = []
    for passage in passages:
        counts, score = Counter(passage), 0.0
        for term in query.split():
            having = sum(term in other for other in passages)
            idf = math.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
            norm = CONFIG.k1 * (1 - CONFIG.b + CONFIG.b * len(passage) / average)
            score += idf * counts[term] / (counts[term] + norm)
        scores.append(score)
    return scores


@pytest.mark.invariant
@pytest.mark.parametrize("seed", [1, 5, 9])
def test_scores_equal_the_formula(index: BM25Index, seed: int) -> None:
    query = " ".join(make_sentence(seed, 6).split())
    hits = index.search([query], top_k=len(TEXTS))[0]
    expected = np.array(reference_scores(query))
    assert hits.scores == pytest.approx(expected[hits.rows], rel=1e-5)
    assert set(hits.rows.tolist()) == set(np.flatnonzero(expected > 0).tolist())
    assert (np.diff(hits.scores) <= 0).all()


def test_queries_without_a_known_term_find_nothing_and_do_not_disturb_others(index: BM25Index) -> None:
    query = TEXTS[3]
    alone = index.search([query], 5)[0]
    unknown, empty, among = index.search(["zzz yyy", "", query], 5)
    assert len(unknown.rows) == len(empty.rows) == 0
    assert among.rows.tolist() == alone.rows.tolist()
    assert alone.rows[0] == 3
    assert index.search(["zzz"], 5)[0].rows.dtype == np.int64


@pytest.mark.invariant
def test_index_does_not_depend_on_how_passages_come_in_parts(tmp_path: Path) -> None:
    build(TEXTS, CONFIG, tmp_path / "a", part_size=3)
    build(TEXTS, CONFIG, tmp_path / "b", part_size=100)
    for name in INDEX_FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_saved_index_opens_in_plain_bm25s(tmp_path: Path) -> None:
    import bm25s

    index = build(TEXTS, CONFIG, tmp_path)
    plain = bm25s.BM25.load(tmp_path, mmap=True)
    query = TEXTS[10].split()
    _, scores = plain.retrieve([query], k=5, show_progress=False)
    ours = index.search([" ".join(query)], 5)[0]
    assert scores[0] == pytest.approx(ours.scores)
    assert json.loads((tmp_path / "params.index.json").read_text())["k1"] == 1.2


@pytest.mark.invariant
@pytest.mark.parametrize("config", [CONFIG, BM25Config()], ids=["plain", "default"])
def test_scores_are_bm25s_to_the_last_bit_whatever_the_shards(config: BM25Config, tmp_path: Path) -> None:
    import bm25s

    terms = [Analyzer(config).terms(text) for text in TEXTS]
    plain = bm25s.BM25(k1=config.k1, b=config.b, method="lucene")
    plain.index(terms, show_progress=False)
    queries = [*TEXTS[:20], " ".join([TEXTS[3]] * 2), "zzz"]
    whole = build(TEXTS, config, tmp_path / "whole")
    expected = whole.search(queries, 30)
    for query, hits in zip(queries[:20], expected, strict=False):
        scores = plain.get_scores(Analyzer(config).terms(query))
        assert scores[hits.rows].tolist() == hits.scores.tolist()
    rows = np.arange(3, len(TEXTS), 2)
    for shard_parts in (1, 3, 5):
        sharded = build(TEXTS, config, tmp_path / str(shard_parts), shard_parts=shard_parts)
        for among in (None, rows):
            for whole_hits, other in zip(
                whole.search(queries, 30, among), sharded.search(queries, 30, among), strict=True
            ):
                assert (whole_hits.rows.tolist(), whole_hits.scores.tolist()) == (
                    other.rows.tolist(),
                    other.scores.tolist(),
                )


@pytest.mark.invariant
@pytest.mark.parametrize("held", [1, 100, 250])
def test_hits_do_not_depend_on_how_many_queries_are_scored_at_once(
    index: BM25Index, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [*TEXTS[:9], "zzz", " ".join([TEXTS[3]] * 2)]
    whole = index.search(queries, 7)
    monkeypatch.setattr("raydr.negatives.bm25._MOST_SCORES", held)
    for hits, other in zip(whole, index.search(queries, 7), strict=True):
        assert hits.rows.tolist() == other.rows.tolist()
        assert hits.scores.tolist() == other.scores.tolist()


def test_of_equal_passages_the_first_ones_are_found(tmp_path: Path) -> None:
    index = build(["beta", "alpha beta", *["alpha"] * 9, "alpha alpha"], CONFIG, tmp_path)
    assert index.search(["alpha"], 4)[0].rows.tolist() == [11, 2, 3, 4]
    assert index.search(["alpha"], 3, among=np.array([1, 5, 9, 10]))[0].rows.tolist() == [5, 9, 10]


def test_more_asked_than_there_are(tmp_path: Path) -> None:
    index = build(["alpha beta", "beta gamma"], CONFIG, tmp_path)
    assert index.search(["beta"], 100)[0].rows.tolist() == [0, 1]


def test_stemming_and_stop_words() -> None:
    texts = "The rivers are flowing; it's 42 °C"
    assert Analyzer(BM25Config()).terms(texts) == Analyzer(BM25Config()).terms("river flow, s 42 c")
    assert Analyzer(CONFIG).terms("The rivers") == ["the", "rivers"]


def test_a_shard_without_any_term_finds_nothing(tmp_path: Path) -> None:
    index = build(["...", "", "alpha", "beta"], CONFIG, tmp_path, part_size=2, shard_parts=1)
    assert [hits.rows.tolist() for hits in index.search(["alpha", "..."], 5)] == [[2], []]


def test_title_comes_before_the_text() -> None:
    assert (join_passage("a", "b"), join_passage("", "b")) == ("a b", "b")


def test_bm25_leaves_jax_and_the_memory_of_its_gpu_alone(tmp_path: Path) -> None:
    """bm25s asks JAX for a product as soon as it is imported, and JAX takes most of a GPU for good."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("from jax import lax")
    (tmp_path / "jax" / "lax.py").write_text("asked = []\ndef top_k(*given): asked.append(given)")
    code = """
from raydr.negatives.terms import Analyzer, load_bm25s
from raydr.negatives.config import BM25Config
print(Analyzer(BM25Config()).terms("the cats"), load_bm25s().selection.JAX_IS_AVAILABLE)
import jax
print(jax.lax.asked)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['cat'] False", "[]"], done.stderr
