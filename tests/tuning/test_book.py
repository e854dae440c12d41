"""The book of a search: what is on disk at any moment is enough to go on from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydr.errors import TuningError
from raydr.runtime.console import progress_bar
from raydr.runtime.tracking import NullTracker
from raydr.store.folder import Folder
from raydr.tuning.book import Book
from raydr.tuning.plan import plan_search
from raydr.tuning.trial_work import INPUTS, RESOURCES
from raydr.tuning.trials import Row, place_of
from tuning.made_space import make_space


def row(epoch: int, score: float) -> Row:
    return Row(epoch=epoch, score=score, metrics={"loss": 1.0})


def open_book(folder: Path, **trials: Any) -> tuple[Book, list[tuple[Any, Any]]]:
    """A book, and what it has had removed: values of the trial that is over, and those of the ones that are kept."""
    plan = plan_search(make_space({"model.scale": {"uniform": [5, 50]}}, search={"num_trials": 3}, trials=trials))
    forgotten: list[tuple[Any, Any]] = []
    objective: Any = SimpleNamespace(forget=lambda ended, kept: forgotten.append((ended, list(kept))))
    with progress_bar("tune", 3, "trials") as bar:
        return Book(Folder(str(folder)), NullTracker(), plan, objective, bar), forgotten


def test_a_killed_search_finds_its_trials_and_what_others_have_left_goes(tmp_path: Path) -> None:
    values = [{"model.scale": 10.0 + number} for number in range(3)]
    book, forgotten = open_book(tmp_path)
    for number, score in enumerate((0.5, 0.7, 0.6)):
        book.begin(number, values[number])
        book.start(number)
        place_of(book.folder, number).write_json("died.json", "once")
        book.add(number, row(1, score))
    # Told again by a trial that was tried again.
    book.add(0, row(1, 0.9))
    book.end(0, "finished")
    assert book.waiting() == [1, 2]
    # The best so far.
    assert forgotten == []
    book.end(1, "finished")
    assert forgotten == [(values[0], [values[1], values[2]])]
    assert [place_of(book.folder, number).exists() for number in range(3)] == [False, True, True]

    book, forgotten = open_book(tmp_path)
    assert [(trial.status, trial.score) for trial in book.listed()] == [
        ("finished", 0.5),
        ("finished", 0.7),
        ("running", 0.6),
    ]
    assert book.waiting() == [2]
    book.start(2)
    book.add(2, row(2, 0.4))
    book.end(2, "stopped")
    assert book.trials[2].epochs == 2
    # Its training may not be down yet, and still write.
    assert (values[2], [values[1]]) not in forgotten
    book.close()
    assert forgotten[-1] == (values[2], [values[1]])
    assert [place_of(book.folder, number).exists() for number in range(3)] == [False, True, False]


def test_a_search_does_not_wait_for_ever(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("raydr.tuning.book.describe_booked", lambda: "of 2 CPU, 2 are booked")
    book, _ = open_book(tmp_path, max_wait_s=90.0)
    book.begin(0, {})
    book.wait(0, RESOURCES, 60.0)
    assert "trial 0 has waited 60 s for its CPUs and GPUs; of 2 CPU, 2 are booked" in capsys.readouterr().err
    with pytest.raises(TuningError, match=r"raise trials.max_wait_s; the same command goes on with the search"):
        book.wait(0, RESOURCES, 120.0)
    # What is being made comes to an end by itself.
    book.wait(0, INPUTS, 120.0)
    told = capsys.readouterr().err
    assert "trial 0 has waited 120 s for what it trains on, which is being made for it or another trial" in told
