"""What pages say of rankers: their trainings, reranked runs beside those that they order."""

from __future__ import annotations

import re
from typing import Any

from raydr.evaluation.comparison import Comparison
from raydr.pages.evaluation import EvaluationResult
from raydr.pages.html import Page
from raydr.pages.run import ModelRecord, ranker_section

SETTINGS = {"loss": "nce", "num_hard_negatives": 8, "num_random_negatives": 0}


def story(*measures: float, **info: Any) -> ModelRecord:
    """A ranker with an epoch for each value of its dev measure; the second was chosen if there is one."""
    history = [{"epoch": at, "metrics": {"loss": 2.0 - at, "dev RR@10": value}} for at, value in enumerate(measures)]
    facts = {"history": history, "best_epoch": len(measures) // 2, "dev": {"dev RR@10": 0.25}, "num_examples": 1234}
    return ModelRecord("ranker", SETTINGS | facts | {"mined_by": "bm25, judged by sieve", "remarks": []} | info)


def shown(*rankers: ModelRecord) -> str:
    page = Page("t")
    ranker_section(page, rankers)
    return page.render()


def cells(html: str) -> list[str]:
    return re.findall(r"<td[^>]*>([^<]*)</td>", html)


def test_a_training_stands_beside_dev_before_it() -> None:
    html = shown(story(0.3, 0.4))
    expected = ["ranker", "2\xa0of\xa02", "1.0000", "RR@10 0.250 → 0.400"]
    assert cells(html) == [*expected, "nce", "bm25, judged by sieve", "positive + 8 mined", "1,234"]
    # Loss, and dev.
    assert html.count("data:image/png") == 2
    assert story(0.3, 0.4).points("dev RR@10") == [(0, 0.25), (1, 0.3), (2, 0.4)]
    assert story(0.3, 0.4).points("loss") == [(1, 2.0), (2, 1.0)]


def test_one_epoch_has_no_curve_of_its_loss_and_without_dev_the_last_one_counts() -> None:
    assert shown(story(0.3)).count("data:image/png") == 1
    html = shown(story(0.3, 0.2, 0.1, best_epoch=None, dev={}))
    assert cells(html)[1:4] == ["3\xa0of\xa03", "0.0000", "–"]
    assert html.count("data:image/png") == 1


def test_what_is_to_be_said_is_said_and_escaped() -> None:
    assert "<p>ranker: it &lt;b&gt; has learnt nothing.</p>" in shown(story(0.3, remarks=["it <b> has learnt nothing"]))


def test_a_checkpoint_as_it_is_has_no_figures_and_no_ranker_no_section() -> None:
    html = shown(ModelRecord("ranker", {"trained": False, "history": []}))
    assert cells(html)[:3] == ["ranker", "untrained checkpoint", "–"]
    assert "data:image/png" not in html
    assert "Rankers" not in shown()


def test_a_reranked_run_is_set_beside_the_run_that_it_orders() -> None:
    names = [("bm25", "trained"), ("bm25", "trained+ranker"), ("trained", "trained+ranker"), ("a+b", "a+b+ranker")]
    comparisons = [
        Comparison("RR@10", baseline, system, 0.1, 0.05, 0.15, 0.0001, 0.0002, 5, 1, 1) for baseline, system in names
    ]
    page, none = Page("t"), Page("t")
    ranker_section(page, [], [EvaluationResult("test", 0.95, [], comparisons)])
    table = cells(page.render())
    assert [table[at + 1 : at + 3] for at in range(0, len(table), 9)] == [
        ["trained+ranker", "trained"],
        ["a+b+ranker", "a+b"],
    ]
    assert table[3:6] == ["+0.100 [+0.050, +0.150]".replace(", ", ",\xa0"), "&lt;0.001", "&lt;0.001"]
    ranker_section(none, [], [EvaluationResult("test", 0.95, [], comparisons[:2])])
    assert none.render() == Page("t").render()
