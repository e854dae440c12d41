"""The book of a search: what is on disk at any moment is enough to go on from."""

from __future__ import annotations

from pathlib import Path

from raydr.runtime.console import progress_bar
from raydr.runtime.tracking import NullTracker
from raydr.store.artifact import Building, Identity, begin
from raydr.tuning.book import Book
from raydr.tuning.trials import Row

IDENTITY = Identity(kind="search")


def row(epoch: int, score: float) -> Row:
    return Row(epoch=epoch, score=score, metrics={"loss": 1.0})


def open_book(making: Building) -> Book:
    with progress_bar("tune", 3, "trials") as bar:
        return Book(making, NullTracker(), 3, bar, "epoch", lambda ended, running: None, 60.0)


def test_a_killed_search_finds_its_trials_and_keeps_the_best_model_alone(tmp_path: Path):
    folder = tmp_path / "search"
    with begin(str(folder), IDENTITY) as making:
        assert isinstance(making, Building)
        book = open_book(making)
        for number, score in enumerate((0.5, 0.7, 0.6)):
            book.begin(number, {"model.scale": 10.0 + number})
            book.start(number)
            book.place(number)
            making.folder.write_json(f"places/trial-{number:03d}/model.json", {})
            book.add(number, row(1, score))
        book.add(0, row(1, 0.9))
        book.end(0, "finished")
        assert (folder / "places/trial-000/model.json").exists()
        book.end(1, "finished")
        # Killed after the trial was written and before it was recorded.
        making.folder.remove(".done/trials%trial-001.json.json")
    assert not (folder / "places/trial-000").exists()
    assert (folder / "places/trial-001/model.json").exists()

    with begin(str(folder), IDENTITY) as making:
        assert isinstance(making, Building)
        assert sorted(making.done) == ["trials/trial-000.json"]
        book = open_book(making)
        assert sorted(making.done) == ["trials/trial-000.json", "trials/trial-001.json"]
        assert [(trial.status, trial.score) for trial in book.listed()] == [
            ("finished", 0.5),
            ("finished", 0.7),
            ("running", 0.6),
        ]
        book.start(2)
        book.add(2, row(2, 0.4))
        book.end(2, "stopped")
        assert book.trials[2].epochs == 2
        # Its training may not be down yet, and still write.
        assert (folder / "places/trial-002").exists()
        book.close(interrupted=False)
        assert not (folder / "places/trial-002").exists()
        assert (folder / "places/trial-001/model.json").exists()
