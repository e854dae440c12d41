"""From verdicts to judged negatives and filtered data sets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from made_artefacts import make_dataset
from made_stage import interrupt, make

from artefacts.judge_inputs import DEPTH, NUM_QUERIES, JudgeInputs, make_inputs
from raydr.artefacts.judged import apply_verdicts, clean_only, filter_pairs
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.examples import load_examples
from raydr.data.tables import VERDICTS, write_parquet
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import write_part
from raydr.store.identity import Identity


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("apply"), tiny_checkpoint)


def make_verdicts(
    path: Path,
    subject: str,
    of: Artifact,
    judge: str,
    parts: dict[str, list[tuple[str, str, str]]],
    split: str = "train",
) -> Artifact:
    """A ``verdicts`` artefact; parts are by number, rows (query, passage, action)."""
    role = "negatives" if subject == "negatives" else "dataset"
    identity = Identity(kind="verdicts", config={"judge": judge}, inputs={role: of.fingerprint})
    with begin(str(path), identity) as making:
        assert isinstance(making, Building)
        named = {f"verdicts/{split}/part-{number}.parquet": rows for number, rows in parts.items()}
        for name, rows in named.items():
            weight = {"keep": 1.0, "down_weight": 0.5}
            values = [(*row[:2], judge, 0.0, row[2], weight.get(row[2], 0.0), None) for row in rows]
            table = pa.Table.from_pylist([dict(zip(VERDICTS.names, row, strict=True)) for row in values], VERDICTS)
            making.record(name, write_part(making.folder, name, len(table), lambda p, t=table: write_parquet(t, p)))
        rows = [row for rows in parts.values() for row in rows]
        counts = {
            "queries": len({row[0] for row in rows}),
            "queries_flagged": len({r[0] for r in rows if r[2] == "drop"}),
        }
        return making.finish({"judge": judge, "subject": subject, "split": split, **counts})


def test_judged_negatives_are_what_training_reads(inputs: JudgeInputs, pool: Pool, tmp_path: Path) -> None:
    mined = inputs.negatives
    everything = [("q02", row["passage_id"], "drop") for row in rows_of(mined) if row["query_id"] == "q02"]
    first = make_verdicts(
        tmp_path / "first",
        "negatives",
        mined,
        "sieve",
        {"00000-00000": [("q01", "s01", "drop"), *everything], "00001-00000": [("q20", "p23", "down_weight")]},
    )
    second = make_verdicts(
        tmp_path / "second",
        "negatives",
        mined,
        "classifier",
        {"00000-00000": [("q01", "s01", "keep")], "00001-00001": [("q20", "s20", "relabel")]},
    )
    before = mined.folder.checksum(mined.parts()[0])
    verdicts = {"sieve": first, "classifier": second}
    made = make(tmp_path / "judged", "negatives", apply_verdicts, mined, verdicts, pool=pool, split="train")
    changed = {
        (row["query_id"], row["passage_id"]): (row["action"], row["weight"])
        for row in rows_of(made)
        if row["action"] != "keep" and row["query_id"] != "q02"
    }
    assert changed == {
        ("q01", "s01"): ("drop", 0.0),
        ("q20", "p23"): ("down_weight", 0.5),
        ("q20", "s20"): ("relabel", 0.0),
    }
    assert len(rows_of(made)) == NUM_QUERIES * DEPTH
    counts = {name: made.info[name] for name in ("keep", "down_weight", "drop", "relabel", "queries_empty")}
    assert counts == {
        "keep": NUM_QUERIES * DEPTH - DEPTH - 3,
        "down_weight": 1,
        "drop": 1 + DEPTH,
        "relabel": 1,
        "queries_empty": 1,
    }
    assert made.info["judges"] == ["sieve", "classifier"]
    assert (made.info["miner"], made.parts()) == ("bm25", mined.parts())
    assert mined.folder.checksum(mined.parts()[0]) == before
    # Training: the dropped are forbidden for their query, the relabelled are positives.
    data, corpus = Dataset(inputs.dataset), Corpus(inputs.corpus)
    examples = load_examples(data.queries("train"), data.qrels("train"), read_split(made, "negatives", "train"), corpus)
    q01, q20 = examples.query_ids.index("q01"), examples.query_ids.index("q20")
    assert "s01" not in corpus.ids(examples.negatives[q01])
    assert corpus.content_hashes(corpus.rows_of(["s01"])).view("int64")[0] in examples.forbidden[q01]
    assert "s20" in corpus.ids(examples.positives[q20])
    assert examples.weights[q20].min() == 0.5


def rows_of(artifact: Artifact) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_split(artifact, "negatives", "train").to_pylist()
    return rows


def test_pairs_that_a_judge_drops_leave_the_training_split(inputs: JudgeInputs, pool: Pool, tmp_path: Path) -> None:
    data = Dataset(inputs.dataset)
    rows = [("q01", "p01", "drop"), ("q02", "p02", "keep")]
    verdicts = make_verdicts(tmp_path / "npc", "pairs", data.artifact, "npc", {"00000-00000": rows})
    stage = (filter_pairs, inputs.dataset, {"npc": verdicts})
    filtered = Dataset(make(tmp_path / "filtered", "dataset", *stage, pool=pool, split="train"))
    left = filtered.qrels("train")["query_id"].to_pylist()
    assert left == [f"q{at:02d}" for at in range(NUM_QUERIES) if at != 1]
    assert filtered.queries("train").equals(data.queries("train"))
    assert filtered.negatives("train").equals(data.negatives("train"))
    assert [(row["query_id"], row["passage_id"]) for row in filtered.dropped("train").to_pylist()] == [("q01", "p01")]
    assert filtered.corpus_fingerprint == data.corpus_fingerprint
    assert filtered.fingerprint != data.fingerprint
    clean = Dataset(make(tmp_path / "clean", "dataset", clean_only, inputs.dataset, pool=pool, split="train"))
    assert clean.qrels("train")["query_id"].to_pylist() == [f"q{at:02d}" for at in range(NUM_QUERIES) if at % 5]
    with pytest.raises(DataError, match=r"no pair of split 'train' .* was made noisy on purpose"):
        make(tmp_path / "cleaner", "dataset", clean_only, clean.artifact, split="train")


def test_a_dropped_pair_is_never_a_negative_of_its_query(inputs: JudgeInputs, tmp_path: Path) -> None:
    corpus = Corpus(inputs.corpus)
    # Here p11 and p12 are two positives of q11, and q10 has one.
    judgments = [("q10", "p10"), ("q11", "p11"), ("q11", "p12"), ("q11", "s11")]
    tables = {
        "queries": {"train": [{"query_id": query_id, "text": query_id} for query_id in ("q10", "q11")]},
        "qrels": {"train": [{"query_id": query, "passage_id": passage} for query, passage in judgments]},
    }
    data = make_dataset(tmp_path / "dataset", corpus, tables)
    mined = inputs.negatives
    for number, dropped in enumerate(("p12", "s11")):
        rows = [("q10", "p10", "drop" if number else "keep"), ("q11", dropped, "drop"), ("q11", "p11", "keep")]
        folder = tmp_path / f"verdicts-{number}"
        verdicts = make_verdicts(folder, "pairs", data.artifact, "npc", {"00000-00000": rows})
        stage = (filter_pairs, data.artifact, {"npc": verdicts})
        data = Dataset(make(tmp_path / f"filtered-{number}", "dataset", *stage, split="train"))
    # The second filter has kept what the first one dropped; what is mined does not bring it back.
    forbidden = corpus.content_hashes(corpus.rows_of(["p11", "p12", "s11"])).view("int64").tolist()
    for candidates in (None, mined):
        queries, qrels, negatives = data.training_tables("train", candidates)
        examples = load_examples(queries, qrels, negatives, corpus)
        assert examples.query_ids == ["q11"]
        assert corpus.ids(examples.positives[0]) == ["p11"]
        assert sorted(examples.forbidden[0].tolist()) == sorted(forbidden)
        offered = [row["passage_id"] for row in negatives.to_pylist() if row["query_id"] == "q11"]
        assert {"p12", "s11"} < set(offered) or candidates is None
        assert not {"p12", "s11"} & set(corpus.ids(examples.negatives[0]))


def test_counts_of_an_interrupted_attempt_are_not_lost(inputs: JudgeInputs, tmp_path: Path) -> None:
    mined = inputs.negatives
    verdicts = {
        "sieve": make_verdicts(
            tmp_path / "sieve", "negatives", mined, "sieve", {"00000-00000": [("q01", "s01", "drop")]}
        )
    }
    made = make(tmp_path / "judged", "negatives", apply_verdicts, mined, verdicts, split="train")
    first = made.parts()[0]
    stamp = Path(made.folder.path(first)).stat().st_mtime_ns
    interrupt(made, first)
    again = make(tmp_path / "judged", "negatives", apply_verdicts, mined, verdicts, split="train")
    assert (again.info, again.manifest.parts) == (made.info, made.manifest.parts)
    assert made.info["drop"] == 1
    assert Path(again.folder.path(first)).stat().st_mtime_ns == stamp
