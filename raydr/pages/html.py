"""One self-contained HTML page: headings, paragraphs, tables and PNG pictures, readable without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

#: A longer table is folded away under its caption.
_MOST_ROWS = 40
#: A figure that is not defined, in a table; it is aligned like a number.
ABSENT = "–"
_CODE = ' class="code"'

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1rem 0 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 30rem; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
td.number, th.number { text-align: right; } td.number { white-space: normal; }
figure { margin: 1rem 0; overflow-x: auto; }
img { max-width: 100%; min-width: min(36rem, 200%); background: white; border-radius: 4px; }
button.sort { all: unset; cursor: pointer; } button.sort:focus-visible { outline: 2px solid; }
th[aria-sort=descending] button::after { content: " ▾"; } th[aria-sort=ascending] button::after { content: " ▴"; }
.bar { display: flex; flex-wrap: wrap; gap: .5rem; align-items: baseline; }
details { border-bottom: 1px solid #8884; padding: .25rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
.headline { font-size: 1.15rem; margin: .5rem 0; }
.right { border-left: 3px solid #2a8; padding-left: .4rem; } .beside p + p { margin-top: .6rem; }
@media print {
  input, select, button.more { display: none; } body { max-width: none; } table, figure { break-inside: avoid; }
}
figcaption, .note { color: light-dark(#666, #aaa); font-size: .9rem; }
code { font-size: .9em; } p.code { font-family: ui-monospace, monospace; tab-size: 4; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 1rem; }
.beside { margin: .3rem 0 1.4rem; }
.beside > div { border-left: 3px solid #8886; padding-left: .7rem; min-width: 0; }
.beside h4 { margin: .2rem 0; font-size: .85rem; }
.beside p { margin: 0; font-size: .88rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.beside p { max-height: 16rem; overflow-y: auto; }
"""
_SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
#: Nothing is fetched, and no other script runs, whatever a text says.
_POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def is_code(text: str) -> bool:
    """Whether a text is shown as code, in a font of one width: a line of it is indented. ``page.js`` says it too.

    >>> is_code("def f():\\n    pass"), is_code("two\\nlines")
    (True, False)
    """
    return re.search(r"\n[ \t]+\S", text) is not None


def number(value: float | None, form: str = ",") -> str:
    """A figure as it stands in a table; a dash where it is not defined.

    >>> number(1234), number(0.125, ".1%"), number(None)
    ('1,234', '12.5%', '–')
    """
    return ABSENT if value is None else format(value, form)


def measure_name(label: str) -> str:
    """A measure as people call it: judgments are what measures go by, unless they say otherwise.

    >>> measure_name("recall@1 (qrels)"), measure_name("accuracy@1 (answer)")
    ('recall@1', 'accuracy@1 (answer)')
    """
    return label.removesuffix(" (qrels)")


@dataclass(frozen=True)
class BrowsedQuery:
    """One query of a split.

    Args:
        text: of it.
        positives: ids of the passages that were judged relevant.
        values: its measure, a system each.
        top: ids of the best passages, a system each.
    """

    text: str
    positives: Sequence[str]
    values: Sequence[float]
    top: Sequence[Sequence[str]]


@dataclass(frozen=True)
class QueryBrowser:
    """Queries and what each system finds for them, side by side; ``page.js`` draws it.

    Args:
        systems: their names.
        measure: that queries are compared by.
        queries: some, or all.
        num_queries: of the split.
        passages: title and beginning of the text of all that are named.
    """

    systems: Sequence[str]
    measure: str
    queries: Sequence[BrowsedQuery]
    num_queries: int
    passages: Mapping[str, tuple[str, str]]

    def as_json(self) -> str:
        """For a script element: no text ends it.

        >>> "<" in QueryBrowser(["a"], "m", [BrowsedQuery("</script>", [], [0.5], [[]])], 1, {}).as_json()
        False
        """
        return json.dumps(asdict(self)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Page:
    """Collects the parts of a page; everything that is put in is escaped.

    >>> page = Page("a < b").paragraph("1 & 2").table("t", ["x"], [["<b>"]])
    >>> html = page.render()
    >>> "<h1>a &lt; b</h1>" in html, "1 &amp; 2" in html, "&lt;b&gt;" in html
    (True, True, True)
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> Page:
        self._parts.append(f"<h2>{escape(text)}</h2>")
        return self

    def paragraph(self, text: str) -> Page:
        self._parts.append(f"<p>{escape(text)}</p>")
        return self

    def headline(self, *sentences: str) -> Page:
        """The answer, before everything else: what, how sure, what next; empty sentences are left out."""
        self._parts += [f'<p class="headline">{escape(text)}</p>' for text in sentences if text]
        return self

    def note(self, text: str) -> Page:
        """A small remark."""
        self._parts.append(f'<p class="note">{escape(text)}</p>')
        return self

    def link(self, text: str, address: str) -> Page:
        """A paragraph that leads to another file, by its address relative to this page."""
        self._parts.append(f'<p><a href="{escape(quote(address))}">{escape(text)}</a></p>')
        return self

    def beside(self, title: str, facts: str, texts: Sequence[tuple[str, str]]) -> Page:
        """Texts side by side, for example a query, its passage and a suspicious one.

        Args:
            title: what is compared.
            facts: one line below the title.
            texts: heading and text of each column.
        """
        columns = "".join(
            f"<div><h4>{escape(head)}</h4><p{_CODE * is_code(text)}>{escape(text)}</p></div>" for head, text in texts
        )
        self._parts.append(
            f"<h3>{escape(title)}</h3>" + f'<p class="note">{escape(facts)}</p><div class="beside">{columns}</div>'
        )
        return self

    def preformatted(self, text: str) -> Page:
        self._parts.append(f'<div class="wide"><pre>{escape(text)}</pre></div>')
        return self

    def table(self, caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Page:
        """Columns whose cells all are numbers (or begin as one) are aligned to the right; a long table is folded."""
        listed = [[str(cell) for cell in row] for row in rows]
        numeric = [bool(listed) and all(_is_number(row[at]) for row in listed) for at in range(len(columns))]

        def cells(tag: str, texts: Sequence[str]) -> str:
            return "".join(_cell(tag, text, right) for text, right in zip(texts, numeric, strict=True))

        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in listed)
        table = (
            f'<div class="wide"><table><caption>{escape(caption)}</caption>'
            f"<thead><tr>{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        if len(listed) > _MOST_ROWS:
            table = f"<details><summary>{len(listed):,} rows: {escape(caption)}</summary>{table}</details>"
        self._parts.append(table)
        return self

    def queries(self, browser: QueryBrowser) -> Page:
        """Queries to look through: what systems found for each, side by side."""
        if len(browser.queries) < browser.num_queries:
            self.note(
                f"{len(browser.queries):,} of {browser.num_queries:,} queries: those on which systems differ most"
            )
        data = f'<script type="application/json">{browser.as_json()}</script>'
        self._parts.append(f'<div class="browser">{data}</div>')
        return self

    def made_from(self, provenance: Sequence[tuple[str, str]]) -> Page:
        """The last section: names and fingerprints of what the page is made from; nothing if there are none."""
        if provenance:
            self.heading("Made from").table("fingerprints", ["what", "fingerprint"], provenance)
        return self

    def picture(self, png: bytes, caption: str) -> Page:
        """A PNG, put into the page itself."""
        data = base64.b64encode(png).decode("ascii")
        self._parts.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
        return self

    def render(self) -> str:
        """The whole page."""
        title = escape(self.title)
        return (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            f"<title>{title}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n<h1>{title}</h1>\n" + "\n".join(self._parts) + f"\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
        )


def _cell(tag: str, text: str, right: bool) -> str:
    if not right:
        return f"<{tag}>{escape(text)}</{tag}>"
    # Where a table is too wide an interval goes below its mean, and is not broken itself.
    mean, bracket, interval = text.partition(" [")
    return f'<{tag} class="number">{escape(mean + bracket + interval.replace(" ", chr(0xA0)))}</{tag}>'


def _is_number(text: str) -> bool:
    first = text.split(" ")[0].lstrip("+-−<")
    return text == ABSENT or first.replace(",", "").replace(".", "").replace("%", "").isdigit()
