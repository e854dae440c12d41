"""Opening a corpus on an object store."""

from __future__ import annotations

from artefacts import make_corpus
from copied import copy_artifact

from raydr.data.corpus import Corpus
from raydr.store.folder import Folder


def test_a_corpus_of_an_object_store_stays_open_until_it_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    away = Folder(f"memory://open-{tmp_path.name}")
    rows = [{"passage_id": f"p{at}", "title": "", "text": f"text {at}"} for at in range(3)]
    copy_artifact(make_corpus(tmp_path / "first", rows).artifact, away)
    first = Corpus.open(away)
    assert Corpus.open(away) is first
    assert first.ids(first.rows_of(["p2", "p0"])) == ["p2", "p0"]
    away.remove()
    copy_artifact(make_corpus(tmp_path / "second", rows[:2]).artifact, away)
    assert len(Corpus.open(away)) == 2
