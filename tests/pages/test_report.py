"""Pictures are pictures, pages are self-contained and escaped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from raydr.evaluation.comparison import Comparison, MeasureSummary, Subset
from raydr.pages.evaluation import (
    EvaluationResult,
    bar_plot,
    comparison_rows,
    count_rows,
    evaluation_page,
    headline,
    marks,
    measure_rows,
    measure_table,
    subset_rows,
)
from raydr.pages.figure import curves, metric_bars
from raydr.pages.html import Page
from raydr.pages.refresh import RoundResult, refresh_page

RESULT = EvaluationResult(
    split="dev",
    confidence=0.95,
    summaries=[
        MeasureSummary(system, measure, mean, mean - 0.1, mean + 0.05, 7)
        for system, mean in (("bm25", 0.4), ("<trained>", 0.6))
        for measure in ("recall@20", "accuracy@20 (answer)")
    ],
    comparisons=[
        Comparison("recall@20", "bm25", "<trained>", 0.2, 0.1, 0.3, 0.0001, 0.0002, 5, 1, 1),
    ],
    counts={"bm25": {"judged": 7, "without_results": 1}, "<trained>": {"judged": 7, "without_results": 0}},
)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def test_pictures_have_a_size_that_fits_a_page() -> None:
    pictures = [
        bar_plot(RESULT),
        curves({"loss": [(0, 2.0), (1, 1.0)], "dev": [(0, 0.1), (1, 0.3)]}, "t", "epoch", "y", mark_best=True),
    ]
    for png in pictures:
        width, height = size_of(png)
        assert 600 <= width <= 1800
        assert 400 <= height <= 800


def test_equal_data_give_equal_bytes_and_other_data_others() -> None:
    def draw(y: float) -> bytes:
        return curves({"loss": [(0, 2.0), (1, y)]}, "t", "step", "loss")

    assert draw(1.0) == draw(1.0)
    assert draw(1.0) != draw(0.5)


def test_many_bars_stay_readable_in_width() -> None:
    bars = [
        MeasureSummary(f"s{system}", f"measure {at} (answer)", 0.5, 0.4, 0.6, 7)
        for at in range(12)
        for system in range(6)
    ]
    assert size_of(metric_bars(bars, "t", 0.95))[0] <= 1800


def test_code_has_a_font_of_one_width_and_prose_has_not() -> None:
    page = Page("x").beside("a", "b", [("code", "def f():\n    pass"), ("prose", "two\nlines")]).render()
    assert '<p class="code">def f():' in page
    assert "<p>two" in page


def test_page_is_self_contained_and_escaped() -> None:
    page = evaluation_page(RESULT, bar_plot(RESULT), [("run:<trained>", "abc")])
    assert "<trained>" not in page
    assert "&lt;trained&gt;" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert page.count("<table>") == page.count("</table>") == 4
    assert "it is another measure than recall@k" in page


def test_a_subset_names_the_queries_of_each_measure_where_they_differ() -> None:
    """Some of its queries have no answers."""
    means = [MeasureSummary("bm25", name, 0.4, 0.3, 0.5, num) for name, num in (("R@1", 34), ("accuracy", 11))]
    assert subset_rows(Subset("new", "", 34, means)) == (
        ["measure", "queries", "bm25"],
        [["R@1", "34", "0.400"], ["accuracy", "11", "0.400"]],
    )
    assert subset_rows(Subset("new", "", 34, means[:1])) == (["measure", "bm25"], [["R@1", "0.400"]])


def test_numbers_are_right_aligned_and_words_are_not() -> None:
    html = Page("t").table("c", ["system", "mean"], [["bm25", "0.400 [0.3, 0.5]"], ["x", "-1"]]).render()
    assert '<th class="number">mean</th>' in html
    assert "<th>system</th>" in html
    rates = Page("t").table("c", ["rate"], [["9e-05"], ["0.0003"], ["<0.001"], ["12.5%"], ["1,200"]]).render()
    assert '<th class="number">rate</th>' in rates


def test_rows_of_the_tables() -> None:
    caption, (columns, rows) = measure_table(RESULT)
    assert caption == "mean [95% bootstrap interval] over 7 queries"
    assert measure_table(replace(RESULT, confidence=0.995))[0] == "mean [99.5% bootstrap interval] over 7 queries"
    assert columns == ["measure", "bm25 (a)", "<trained> (b)"]
    columns, rows = measure_rows(RESULT)
    assert columns == ["measure", "queries", "bm25 (a)", "<trained> (b)"]
    assert rows[0] == ["recall@20", "7", "0.400 [0.300, 0.450]", "0.600 [0.500, 0.650] *a"]
    # Of the other measure no test is there.
    assert rows[1][2:] == ["0.400 [0.300, 0.450]", "0.600 [0.500, 0.650] *"]
    assert measure_rows(RESULT, intervals=False)[1][0][2:] == ["0.400", "0.600 *a"]
    assert comparison_rows(RESULT)[1][0][1:6] == ["<trained>", "bm25", "+0.200 [+0.100, +0.300]", "<0.001", "<0.001"]


def test_the_headline_says_which_system_is_best_and_of_which_others_that_is_sure() -> None:
    assert headline(RESULT) == ("<trained> is best on dev: recall@20 0.600 [0.500, 0.650], surely ahead of bm25.")
    unsure = replace(RESULT, comparisons=[replace(RESULT.comparisons[0], p_holm=0.2)])
    assert headline(unsure).endswith(", not surely ahead of bm25.")
    alone = EvaluationResult("dev", 0.95, RESULT.summaries[:1])
    assert headline(alone) == "bm25 has recall@20 0.400 [0.300, 0.450] on dev."
    page = evaluation_page(RESULT, bar_plot(RESULT))
    assert page.index("is best on dev") < page.index("<figure>")


def test_marks_name_who_is_behind_and_only_where_the_test_says_so() -> None:
    def pair(baseline: str, system: str, difference: float, p: float) -> Comparison:
        return Comparison("AP", baseline, system, difference, difference, difference, p, p, 1, 1, 1)

    means = {"x": 0.5, "y": 0.3, "z": 0.5}
    result = EvaluationResult(
        split="dev",
        confidence=0.95,
        summaries=[MeasureSummary(system, "AP", mean, mean, mean, 3) for system, mean in means.items()],
        comparisons=[pair("x", "y", -0.2, 0.01), pair("x", "z", 0.0, 1.0), pair("y", "z", 0.2, 0.06)],
    )
    assert measure_rows(result, intervals=False)[1] == [["AP", "3", "0.500 *b", "0.300", "0.500 *"]]
    assert "p < 0.05" in marks(result)
    alone = EvaluationResult("dev", 0.95, result.summaries[:1])
    assert measure_rows(alone)[1] == [["AP", "3", "0.500 [0.500, 0.500]"]]


def test_a_long_table_is_folded_under_its_caption() -> None:
    def html(rows: int) -> str:
        return Page("t").table("many", ["x"], [["1"]] * rows).render()

    assert "<details>" not in html(40)
    assert "<details><summary>41 rows: many</summary>" in html(41)


def test_an_interval_may_go_below_its_mean_and_is_not_broken_itself() -> None:
    page = Page("t").table("c", ["measure", "bm25"], [["R@1", "0.225 [0.190, 0.258] bcd"]]).render()
    assert '<td class="number">0.225 [0.190,\u00a00.258]\u00a0bcd</td>' in page


@pytest.mark.parametrize(("num_rounds", "columns"), [(2, 2), (6, 4), (12, 4)])
def test_the_table_of_a_refresh_fits_on_a_page(num_rounds: int, columns: int) -> None:
    """Eleven measures with intervals beside each other were wider than the page."""
    measures = ["RR@10", "nDCG@10", "AP", "recall@1"]

    def measured(at: int) -> RoundResult:
        summaries = [MeasureSummary("a", measure, 0.1 * at, 0.0, 1.0, 9) for measure in measures]
        return RoundResult("arm", at, {"test": summaries}, {}, {}, {}, {}, {})

    rounds = [measured(at) for at in range(1, num_rounds + 1)]
    page = refresh_page("mine", rounds, ["test"], {"arm": 2}, {}, 0.95)
    figures = "0.100 [0.000, 1.000] in round 1, 0.200 [0.000, 1.000] in round 2"
    assert f"arm: round 2 is best on dev; nDCG@10 on test is {figures}." in page
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert head.count('class="number"') == columns
    assert ("arm, round 2" in head) == (num_rounds < len(measures))
    assert "recall@1<" in page
    assert "(qrels)" not in page


def test_more_systems_than_measures_are_rows() -> None:
    """Eight systems beside each other were wider than the page."""
    summaries = [MeasureSummary(f"s{at}", measure, 0.5, 0.4, 0.6, 9) for at in range(8) for measure in ("AP", "RR")]
    page = evaluation_page(EvaluationResult("dev", 0.95, summaries), b"")
    assert page[page.index("<thead>") : page.index("</thead>")].count("</th>") == 1 + 2


def test_rare_kinds_of_queries_have_a_column_only_where_there_are_any() -> None:
    counts = {"bm25": {"judged": 7, "without_results": 0, "with_answers": 0, "in_run_but_not_in_split": 2}}
    assert count_rows(replace(RESULT, counts=counts))[0] == [
        "system",
        "judged",
        "without results",
        "in run but not in split",
    ]


def test_negative_numbers_have_a_minus_that_is_as_wide_as_a_plus() -> None:
    page = Page("t").table("c", ["gain"], [["-0.1 [-0.2, +0.3]"], ["0.5"]]).render()
    assert "−0.1 [−0.2,\u00a0+0.3]" in page
    assert "<td>-1 of x-2</td>" in Page("t").table("c", ["x"], [["-1 of x-2"], ["word"]]).render()


def test_a_long_cell_is_broken_into_lines() -> None:
    page = Page("t").table("c", ["why"], [["a sentence that is longer than a line of a table"], ["short"]]).render()
    assert page.count('<td class="prose">') == 1


def test_the_headline_of_a_refresh_has_the_measure_on_test() -> None:
    """The best round on dev was shown by its measure on dev, where it was chosen."""
    splits = {name: [MeasureSummary("a", "AP", mean, 0.0, 1.0, 9)] for name, mean in (("dev", 0.3), ("test", 0.2))}
    page = refresh_page("mine", [RoundResult("arm", 1, splits, {}, {}, {}, {}, {})], [*splits], {"arm": 1}, {}, 0.95)
    assert "AP on test is 0.200 [0.000, 1.000] in round 1." in page


def test_no_cell_is_empty() -> None:
    assert "<td>–</td>" in Page("t").table("c", ["why"], [[""], ["word"]]).render()
    assert '<td class="number">–</td>' in Page("t").table("c", ["gain"], [[""], ["+0.1"]]).render()
