"""Pages in a browser: tables sort and filter, queries are looked through, and no text does anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pages.chromium import OpenPage, opened
from raydr.pages.html import BrowsedQuery, Page, QueryBrowser

HOSTILE = "</script><script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"
ROWS = [["a", "1,200"], ["b", "0.5 [0.4, 0.6]"], ["c", "–"], ["d", "−3"], ["e", "30"], [HOSTILE, "7"], ["f", "9e-05"]]
TIMES = [["7.2 s", "2026-11-29T09:00"], ["1 h 01 min", "2026-01-30T12:00"], ["1 min 40 s", "2026-02-01T11:00"]]
CELLS = "[...document.querySelector('tbody').rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
#: An indented line makes a text code.
SHOWN = "titledef f():\n    text"
QUERIES = "[...document.querySelectorAll('summary')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    folder = tmp_path_factory.mktemp("browser")
    queries = [
        BrowsedQuery("won by b", ["p1"], [0.25, 1.0], [["p2"], ["p1", "p2"]]),
        BrowsedQuery("lost by b", ["p2"], [1.0, 0.5], [["p2"], ["p1"]]),
        BrowsedQuery(HOSTILE, [], [0.5, 0.5], [[], []]),
    ]
    browser = QueryBrowser(
        ["a", "b"], "nDCG@10", queries, 9, {"p1": ("", HOSTILE), "p2": ("title", "def f():\n    text")}
    )
    file = folder / "page.html"
    made = (
        Page(HOSTILE).table(HOSTILE, ["name", "value"], ROWS).table("times", ["took", "made"], TIMES).queries(browser)
    )
    file.write_text(made.render(), encoding="utf-8")
    with opened(file, folder) as open_page:
        yield open_page


def test_a_table_sorts_by_numbers_and_what_is_none_comes_last(page: OpenPage) -> None:
    click = "document.querySelectorAll('th button')[1].click()"
    page.ask(click)
    assert page.ask(CELLS) == ["a", "e", HOSTILE, "b", "f", "d", "c"]
    page.ask(click)
    assert page.ask(CELLS) == ["d", "f", "b", HOSTILE, "e", "a", "c"]
    page.ask("document.querySelectorAll('th button')[0].click()")
    assert page.ask(CELLS)[0] == "f"


def test_durations_and_dates_sort_by_time(page: OpenPage) -> None:
    click = "document.querySelectorAll('{}')[1].querySelectorAll('th button')[{}].click()"
    cells = "[...document.querySelectorAll('tbody')[1].rows].map((row) => row.cells[{}].textContent)"
    for at, order in enumerate([(1, 2, 0), (0, 2, 1)]):
        page.ask(click.format("thead", at))
        assert page.ask(cells.format(at)) == [TIMES[row][at] for row in order]


def enter(page: OpenPage, field: str, value: str) -> None:
    """As a person who writes or chooses."""
    page.ask(f"field = {field}; field.value = {value!r}; field.dispatchEvent(new Event('input'))")


def test_rows_are_filtered(page: OpenPage) -> None:
    enter(page, "document.querySelector('input')", "0.5 [")
    assert page.ask(CELLS) == ["b"]
    enter(page, "document.querySelector('input')", "")
    assert len(page.ask(CELLS)) == len(ROWS)


def test_queries_are_looked_through_by_win_and_loss(page: OpenPage) -> None:
    assert page.ask(QUERIES) == ["+0.750  won by b", "−0.500  lost by b", f"+0.000  {HOSTILE}"]
    which = "document.querySelectorAll('.browser select')[2]"
    enter(page, which, "loss")
    assert page.ask(QUERIES) == ["−0.500  lost by b"]
    enter(page, which, "all")
    page.ask("one = document.querySelector('details'); one.open = true; one.dispatchEvent(new Event('toggle'))")
    script = "[...document.querySelectorAll('details .beside p')].map((one) => [one.className, one.textContent])"
    assert page.ask(script) == [["right", f"✓ p1{HOSTILE}"], ["code", SHOWN], ["code", SHOWN]]


def test_no_text_runs_and_nothing_is_fetched(page: OpenPage) -> None:
    assert page.ask("typeof window.hostile") == "undefined"
    assert page.ask("document.querySelectorAll('img').length") == 0
    assert page.ask("performance.getEntriesByType('resource').length") == 0
    # Another script than the page's own, as markup that slipped through would be.
    page.ask("other = document.createElement('script'); other.textContent = 'window.hostile = 1'")
    page.ask("document.body.append(other)")
    assert page.ask("typeof window.hostile") == "undefined"


def test_a_wide_table_moves_within_the_page_and_its_rows_keep_their_names(tmp_path: Path) -> None:
    file = tmp_path / "wide.html"
    rows = [["system", *["0.100 [0.050, 0.150]"] * 20]]
    file.write_text(Page("wide").table("t", ["", *map(str, range(20))], rows).render(), encoding="utf-8")
    with opened(file, tmp_path) as page:
        assert page.ask("document.documentElement.scrollWidth <= innerWidth")
        page.ask("wide = document.querySelector('.wide'); wide.scrollLeft = 300")
        assert page.ask("wide.scrollLeft") == 300
        assert (
            page.ask("wide.querySelector('td').getBoundingClientRect().left - wide.getBoundingClientRect().left") == 0
        )
