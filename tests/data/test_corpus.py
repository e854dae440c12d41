"""Opening a corpus on an object store."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from copied import copy_artifact
from made_artefacts import make_corpus

from raydr.data.corpus import Corpus, hash_content
from raydr.store.folder import Folder


def test_a_corpus_stays_open_for_the_next_task_until_it_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    away = Folder(f"memory://open-{tmp_path.name}")

    def arrived() -> Corpus:
        corpus: Corpus = pickle.loads(pickle.dumps(Corpus.open(away)))
        return corpus

    rows = [{"passage_id": f"p{at}", "title": "", "text": f"text {at}"} for at in range(3)]
    copy_artifact(make_corpus(tmp_path / "first", rows).artifact, away)
    first = arrived()
    assert arrived() is first
    assert first.ids(first.rows_of(["p2", "p0"])) == ["p2", "p0"]
    away.remove()
    copy_artifact(make_corpus(tmp_path / "second", rows[:2]).artifact, away)
    assert len(arrived()) == 2


@pytest.mark.invariant
def test_copies_have_one_content_whatever_their_case_white_space_and_unicode_form() -> None:
    titles = pa.array(["Aar\u00f3n", "aaro\u0301n", "", "Aar\u00f3n"])
    texts = pa.array(["is a\tprophet", " is  A prophet\n", "aar\u00d3n is a prophet", "is no prophet"])
    first, second, third, other = hash_content(titles, texts).tolist()
    assert first == second == third != other


def test_a_corpus_goes_to_another_process_as_its_place(tmp_path):
    """And what is mapped of it stays: 1,000 texts would be in it otherwise."""
    corpus = make_corpus(
        tmp_path / "corpus", [{"passage_id": f"p{at}", "title": "", "text": "long"} for at in range(1000)]
    )
    assert corpus.part(0).num_rows
    sent = pickle.dumps(corpus)
    assert len(sent) < 1000
    assert pickle.loads(sent).ids(corpus.rows_of(["p7"])) == ["p7"]
