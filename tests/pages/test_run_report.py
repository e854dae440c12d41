"""The page of a run: what is there is shown, what is not there is not made up."""

from __future__ import annotations

import re

from raydr.pages.html import Page
from raydr.pages.run import ModelRecord, RunRecord, detection_curves, run_page

HISTORY = [
    {"epoch": 0, "metrics": {"loss": 2.0, "dev RR@10": 0.3}},
    {"epoch": 1, "metrics": {"loss": 1.0, "dev RR@10": 0.2, "consistency": 0.1}},
]
DETECTIONS = [
    {"epoch": 1, "share_flagged": 0.2, "reason": "", "precision": 0.9, "recall": None},
    {"epoch": 2, "share_flagged": 0.0, "reason": "the components are too close"},
]
INFO = {
    "history": HISTORY,
    "detections": DETECTIONS,
    "best_epoch": 0,
    "num_examples": 1234,
    "dtype": "float32",
}
MODEL = ModelRecord("npc", INFO, "npc, pair detection")


def test_trainings_and_detections_are_shown_with_the_best_epoch() -> None:
    untrained = ModelRecord("untrained", {"dim": 32})
    page = run_page(RunRecord("mine", [MODEL, untrained], [], [], []))
    assert "dev RR@10 0.300" in page
    assert re.search(r"inconclusive</td>.*the components are too close", page)
    assert not re.search(r">0\.0%", page)
    assert "1,234" in page
    assert "<td>untrained</td>" not in page
    # Loss, dev measure, detection by epoch; there is no panel.
    assert page.count("data:image/png") == 3
    assert not re.search(r'src="(?!data:)', page)


def test_an_empty_working_folder_is_said_to_be_empty() -> None:
    assert "There is no finished model" in run_page(RunRecord("mine", [], [], [], []))


def test_metrics_that_an_epoch_has_not_are_left_out() -> None:
    assert MODEL.points("consistency") == [(2, 0.1)]
    assert MODEL.dev_measures == ["dev RR@10"]
    assert detection_curves(DETECTIONS, "t").startswith(b"\x89PNG")


def test_links_and_texts_beside_each_other_are_escaped() -> None:
    html = Page("t").link("a < b", 'x y/"z".html').beside("q", "f", [("head", "<pre>")]).render()
    assert 'href="x%20y/%22z%22.html">a &lt; b</a>' in html
    assert "<p>&lt;pre&gt;</p>" in html


def test_a_judge_that_could_not_tell_has_flagged_no_share() -> None:
    """An inconclusive judge was shown with 0.0 % flagged and recall 0.000."""
    info = {"judge": "npc", "subject": "pairs", "split": "train", "verdicts": 40, "drop": 0, "flagged_share": 0.0}
    info |= {"detector": {"reason": "too close"}, "detection": {"precision": None, "recall": 0.0, "auroc": 0.748}}
    page = run_page(RunRecord("mine", [], [], [], [("npc-train", info)]))
    assert ">inconclusive<" in page
    assert ">0.748<" in page
    assert not re.search(r">0\.0(00|%)", page)
