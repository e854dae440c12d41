"""Documented functions as pairs: which are usable, and what is masked."""

from __future__ import annotations

import pytest

from raydr.data.readers.code_search import Pair, drop_repeats, mask_name, pairs_of_module


@pytest.mark.parametrize(
    ("code", "name", "masked"),
    [
        ("x.get(getter, 'get')", "get", "x.f(getter, 'f')"),
        (r"print('\name')", "name", r"print('\f')"),
        ("match x:", "match", None),
        ("r'a' + r", "r", None),
    ],
)
def test_mask(code: str, name: str, masked: str | None) -> None:
    assert mask_name(code, name) == masked


@pytest.mark.parametrize(
    "text",
    [
        'def g():\n    """One two three."""; return 1\n',
        'def g(): """One two three."""\n',
        'def g():\n    """%(one)s two three."""\n    return 1\n',
        "def g():\n    return 1\n",
    ],
)
def test_functions_without_a_usable_pair(text: str) -> None:
    assert list(pairs_of_module(text, "x.py")) == []


def test_multiline_strings_and_form_feeds_do_not_shift_lines() -> None:
    text = 'x = """a\x0cb"""\nclass A:\n\x0c\n    def g(self):\n        """One two three."""  # why\n'
    text += '        return """\n  b"""\n'
    (pair,) = pairs_of_module(text, "x.py")
    assert (pair.line, pair.code) == (4, 'def f(self):\n    return """\nb"""')


def test_repeats_do_not_depend_on_a_dropped_pair() -> None:
    pairs = [Pair("one", "a", "", 1), Pair("one", "b", "", 2), Pair("two", "a", "", 3)]
    assert [pair.line for pair in drop_repeats(pairs)] == [3]
