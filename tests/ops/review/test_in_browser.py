"""The review in a browser, by keyboard alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from pages.chromium import OpenPage, opened

from ops.review.conftest import HOSTILE
from raydr.ops.review.review import Review
from raydr.ops.review.server import listen, review_app

COUNTS = "document.querySelector('#counts').textContent"
QUESTION = "document.querySelector('#question').textContent"
TEXTS = "[...document.querySelectorAll('#texts section')].map((one) => one.querySelector('p').textContent)"
FOCUS = "document.activeElement?.id"
#: Contrast of an element's text with what is behind it, as WCAG defines it: 4.5 can be read.
CONTRAST = """
light = (color) => color.match(/[\\d.]+/g).slice(0, 3)
    .map((one) => one / 255).map((one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [.2126, .7152, .0722][at], .05);
document.documentElement.style.colorScheme = '%s'; document.body.style.backgroundColor = 'Canvas';
['#question', '#trouble', '#facts', '#texts p', '#wrong', 'select'].map((name) => {
    found = document.querySelector(name);
    for (behind = found; /, 0\\)/.test(getComputedStyle(behind).backgroundColor); ) behind = behind.parentElement;
    both = [getComputedStyle(found).color, getComputedStyle(behind).backgroundColor].map(light);
    return Math.max(...both) / Math.min(...both);
})
"""


@pytest.fixture
def page(review: Review, tmp_path: Path) -> Iterator[OpenPage]:
    with listen(0) as bound:
        server = uvicorn.Server(uvicorn.Config(review_app(review), log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            with opened(f"http://127.0.0.1:{bound.getsockname()[1]}/", tmp_path / "browser") as open_page:
                # Before, the browser had shown an empty page.
                open_page.wait_for(FOCUS, "name")
                yield open_page
        finally:
            server.should_exit = True
            thread.join()


def verdicts(review: Review) -> list[tuple[str, str, str]]:
    return [(decision.reviewer, decision.subject, decision.verdict) for decision in review.decisions().lines]


def test_labels_are_decided_by_keyboard_alone_and_no_text_runs(page: OpenPage, review: Review) -> None:
    total = len(review.queue)
    # Letters of a name are no verdicts.
    for key in "wur":
        page.press(key)
    page.press("Enter")
    page.wait_for(COUNTS, f"0 of {total}: 0 right, 0 wrong, 0 unsure")
    assert page.ask(QUESTION) == "Does the labelled passage answer the query?"
    assert page.ask(TEXTS) == [text for *_, text in review.queue[0].texts]
    page.press("w")
    page.wait_for(COUNTS, f"1 of {total}: 0 right, 1 wrong, 0 unsure")
    assert page.ask(QUESTION) == "Is the candidate rightly labelled as no answer?"
    page.press("r")
    page.wait_for(COUNTS, f"2 of {total}: 1 right, 1 wrong, 0 unsure")
    page.press("z")
    page.wait_for(COUNTS, f"1 of {total}: 0 right, 1 wrong, 0 unsure")
    assert page.ask(TEXTS) == [text for *_, text in review.queue[1].texts]
    page.press("u")
    page.wait_for(COUNTS, f"2 of {total}: 0 right, 1 wrong, 1 unsure")
    num = sum(item.label.subject == "pairs" for item in review.queue)
    page.press("p")
    page.wait_for(COUNTS, f"1 of {num}: 0 right, 1 wrong, 0 unsure")
    # A button has the focus and is pressed.
    page.ask("document.querySelector('#wrong').focus()")
    page.press("Enter")
    page.wait_for(COUNTS, f"2 of {num}: 0 right, 2 wrong, 0 unsure")
    assert verdicts(review) == [
        ("wur", "pairs", "wrong"),
        ("wur", "negatives", "right"),
        ("wur", "negatives", "undo"),
        ("wur", "negatives", "unsure"),
        ("wur", "pairs", "wrong"),
    ]
    assert page.ask("document.querySelector('#findings').textContent").startswith("npc-train: no drop of pairs is ")
    # Texts are texts, and no other script runs, as one would that had slipped through.
    assert HOSTILE in page.ask("document.querySelector('#texts h4').textContent")
    page.ask("other = document.createElement('script'); other.textContent = 'window.hostile = 1'")
    page.ask("document.body.append(other)")
    page.ask("document.body.insertAdjacentHTML('beforeend', '<p onclick=window.hostile=1 id=x>')")
    page.ask("document.querySelector('#x').click()")
    assert page.ask("typeof window.hostile") == "undefined"
    assert page.ask("document.querySelectorAll('img').length") == 0
    assert page.ask("getComputedStyle(document.documentElement).colorScheme") == "light dark"


def test_what_cannot_be_saved_is_said_and_stays(page: OpenPage, review: Review) -> None:
    for key in "ada":
        page.press(key)
    page.press("Enter")
    page.wait_for(QUESTION, "Does the labelled passage answer the query?")
    review.file.mkdir()
    page.press("w")
    page.wait_for("document.querySelector('#trouble').textContent.startsWith('Not saved')", True)
    for scheme in ("light", "dark"):
        assert min(page.ask(CONTRAST % scheme)) > 4.5, scheme
    assert page.ask(TEXTS) == [text for *_, text in review.queue[0].texts]
    review.file.rmdir()
    page.press("w")
    page.wait_for("document.querySelector('#trouble').textContent", "")
    assert verdicts(review) == [("ada", "pairs", "wrong")]
