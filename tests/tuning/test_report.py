"""The page of a search: the result and its uncertainty first, settings on axes that can be read."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raydr.pages.figure import Draw
from raydr.tuning import report
from raydr.tuning.plan import TunePlan
from raydr.tuning.report import TuneOutcome, score_by_setting, tuning_page
from raydr.tuning.search import best_config
from tuning.made_space import make_space, make_trial

SAMPLERS = {"train.sampler": "top", "train.optimizer.learning_rate": 9e-05}


@pytest.fixture
def outcome() -> TuneOutcome:
    trials = [
        make_trial(0, [0.1, 0.15], **SAMPLERS, **{"train.loss.warmup_epochs": 2}),
        make_trial(1, [0.1, 0.19], **SAMPLERS, **{"train.loss.warmup_epochs": 1}),
    ]
    study: Any = SimpleNamespace(info={"facts": ["2 trials"]})
    return TuneOutcome(TunePlan(make_space(), grace_epochs=2, max_epochs=8), study, trials)


def test_the_result_and_its_uncertainty_come_first(outcome: TuneOutcome) -> None:
    page = tuning_page(outcome, b"", "seed: 0")
    best, sure = re.findall('class="headline">([^<]+)<', page)
    assert best.startswith("The best is trial 1 with dev RR@10 0.1900")
    assert "since it was chosen there. Next: confirm.num_seeds" in sure
    # The whole config is folded away.
    assert re.search("<details><summary>best.yaml.*?</summary>.*seed: 0", page)


def test_a_default_that_failed_half_way_is_not_compared_by_its_first_epochs(outcome: TuneOutcome) -> None:
    half = make_trial(0, [0.1], "failed", **SAMPLERS).model_copy(update={"error": "the loss is not finite"})
    failed = replace(outcome, trials=[half, outcome.trials[1]])
    assert failed.summary().endswith("; the default failed: the loss is not finite")
    assert best_config(failed.plan, failed.best, half).splitlines()[0].endswith("; the default failed")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """The panels of a picture by setting."""
    drawn: dict[str, Axes] = {}

    def keep(panels: list[tuple[str, Draw]], title: str) -> bytes:
        for name, draw in panels:
            drawn[name] = Figure().subplots()
            draw(drawn[name])
        return b""

    monkeypatch.setattr(report, "grid", keep)
    return drawn


def test_listed_numbers_are_ticks(outcome: TuneOutcome, drawn: dict[str, Axes]) -> None:
    """Warm-ups of 1 to 3 epochs had ticks at 1.2 and 1.4."""
    score_by_setting(outcome)
    assert [label.get_text() for label in drawn["warmup_epochs"].get_xticklabels()] == ["1", "2", "3"]
    assert drawn["learning_rate"].get_xscale() == "log"


def test_a_default_outside_the_list_has_a_tick(outcome: TuneOutcome, drawn: dict[str, Axes]) -> None:
    outcome.default.values["train.sampler"] = {"name": "simans", "a": 0.5}
    score_by_setting(outcome)
    assert [label.get_text() for label in drawn["sampler"].get_xticklabels()] == ["top", "uniform", "simans(a=0.5)"]
