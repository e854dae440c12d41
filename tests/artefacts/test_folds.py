"""The data set of a fold: nothing of what its model judges, whichever pairs are trained on."""

from __future__ import annotations

from pathlib import Path

import made_artefacts as artefacts
from made_artefacts import make_corpus
from made_stage import make

from raydr.artefacts.folds import cut_folds, leave_fold_out
from raydr.data.dataset import Dataset
from raydr.data.tables import pairs_of

#: Two folds share passages only where one passage has more queries than a fold.
NUM_QUERIES = 12


def test_passages_that_a_fold_judges_are_left_out_of_kept_pairs_too(tmp_path: Path) -> None:
    passages = [{"passage_id": f"p{at}", "title": "", "text": f"text {at}"} for at in range(NUM_QUERIES)]
    corpus = make_corpus(tmp_path / "corpus", passages)
    queries = [{"query_id": f"q{at:02d}", "text": f"query {at}"} for at in range(NUM_QUERIES)]
    # Two thirds of the queries have the same passage.
    pairs = [(f"q{at:02d}", "p0" if at % 3 else f"p{at}") for at in range(NUM_QUERIES)]

    def dataset(name: str, kept: list[tuple[str, str]]) -> artefacts.Artifact:
        qrels = [{"query_id": query_id, "passage_id": passage_id} for query_id, passage_id in kept]
        tables = {"queries": {"train": queries}, "qrels": {"train": qrels}}
        return artefacts.make_dataset(tmp_path / name, corpus, tables).artifact

    every = dataset("every", pairs)
    inputs = (every, corpus.artifact)
    folds = make(tmp_path / "folds", "folds", cut_folds, *inputs, split="train", num_folds=2, seed=0)
    of_all = make(tmp_path / "all", "dataset", leave_fold_out, *inputs, folds, split="train", fold=0)
    trained = set(pairs_of(Dataset(of_all).qrels("train")))
    judged = {passage_id for query_id, passage_id in pairs if (query_id, passage_id) not in trained}
    assert "p0" in judged
    # A judge drops the pairs of that passage in fold 0 and keeps those of fold 1: its model still must not know it.
    mine = {query_id for query_id, passage_id in pairs if passage_id != "p0"} & {query_id for query_id, _ in trained}
    kept = [pair for pair in pairs if pair[1] != "p0" or pair[0] > "q06"]
    some = make(
        tmp_path / "some", "dataset", leave_fold_out, *inputs, folds, dataset("kept", kept), split="train", fold=0
    )
    left = set(pairs_of(Dataset(some).qrels("train")))
    assert left == trained & set(kept)
    assert {query_id for query_id, _ in left} == mine
