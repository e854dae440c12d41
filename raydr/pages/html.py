"""The layout of all pages: each is a self-contained HTML file, readable without a network."""

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

#: Rows above which a table is folded under its caption.
_MOST_ROWS = 40
#: Sign of an undefined figure in a table; aligned like a number.
ABSENT = "–"
_CODE = ' class="code"'
#: Characters above which a cell's text is broken into lines.
_LONGEST_LINE = 40

_STYLE, _SCRIPT = (Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
#: The page fetches nothing and runs only its own script, whatever its texts contain.
_POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def is_code(text: str) -> bool:
    """Return whether a text is code, which has indented lines and a monospaced font; ``page.js`` uses the same rule.

    >>> is_code("def f():\\n    pass"), is_code("two\\nlines")
    (True, False)
    """
    return re.search(r"\n[ \t]+\S", text) is not None


def number(value: float | None, form: str = ",") -> str:
    """Format a figure for a table; None becomes a dash.

    >>> number(1234), number(0.125, ".1%"), number(None)
    ('1,234', '12.5%', '–')
    """
    return ABSENT if value is None else format(value, form)


@dataclass(frozen=True)
class BrowsedQuery:
    """A query of a split.

    Args:
        text: text of the query.
        positives: ids of its relevant passages.
        values: the query's measure for each system.
        top: ids of the top passages of each system.
    """

    text: str
    positives: Sequence[str]
    values: Sequence[float]
    top: Sequence[Sequence[str]]


@dataclass(frozen=True)
class QueryBrowser:
    """Queries with the passages that each system retrieves; ``page.js`` draws them.

    Args:
        systems: names of the systems.
        measure: the measure by which queries are compared.
        queries: all queries, or some of them.
        num_queries: number of queries of the split.
        passages: title and start of the text of each passage, by its id.
    """

    systems: Sequence[str]
    measure: str
    queries: Sequence[BrowsedQuery]
    num_queries: int
    passages: Mapping[str, tuple[str, str]]

    def as_json(self) -> str:
        """Return JSON for a script element, with ``<``, ``>`` and ``&`` escaped so that no text can end it.

        >>> "<" in QueryBrowser(["a"], "m", [BrowsedQuery("</script>", [], [0.5], [[]])], 1, {}).as_json()
        False
        """
        return json.dumps(asdict(self)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Page:
    """A page with a title, the answer in sentences, sections, and the provenance. All texts are escaped.

    Args:
        title: title of the page.
        answer: sentences below the title: the result, its uncertainty, the next step; empty ones are left out.

    >>> html = Page("a < b", "1 & 2").table("t", ["x"], [["<b>"]]).render()
    >>> "<h1>a &lt; b</h1>" in html, "1 &amp; 2" in html, "&lt;b&gt;" in html
    (True, True, True)
    """

    def __init__(self, title: str, *answer: str) -> None:
        self.title = title
        self._parts = [f'<p class="headline">{escape(sentence)}</p>' for sentence in answer if sentence]

    def _add(self, html: str) -> Page:
        self._parts.append(html)
        return self

    def heading(self, text: str) -> Page:
        return self._add(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> Page:
        return self._add(f"<p>{escape(text)}</p>")

    def note(self, text: str) -> Page:
        """Add a remark in small print."""
        return self._add(f'<p class="note">{escape(text)}</p>')

    def link(self, text: str, address: str) -> Page:
        """Add a link to another file, by its address relative to this page."""
        return self._add(f'<p><a href="{escape(quote(address))}">{escape(text)}</a></p>')

    def beside(self, title: str, facts: str, texts: Sequence[tuple[str, str]]) -> Page:
        """Add texts side by side, for example a query, its passage and a suspicious passage.

        Args:
            title: title of the comparison.
            facts: a line below the title.
            texts: heading and text of each column.
        """
        columns = "".join(
            f"<div><h4>{escape(head)}</h4><p{_CODE * is_code(text)}>{escape(text)}</p></div>" for head, text in texts
        )
        return self._add(f"<h3>{escape(title)}</h3>").note(facts)._add(f'<div class="beside">{columns}</div>')

    def preformatted(self, caption: str, text: str) -> Page:
        """Add preformatted lines, folded under a caption."""
        lines = f'<div class="wide"><pre>{escape(text)}</pre></div>'
        return self._add(f"<details><summary>{escape(caption)}</summary>{lines}</details>")

    def table(self, caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Page:
        """Add a table, folded if it is long; columns whose cells all begin with a number are right-aligned.

        Empty cells become dashes.
        """
        listed = [[str(cell) or ABSENT for cell in row] for row in rows]
        numeric = [bool(listed) and all(_is_number(row[at]) for row in listed) for at in range(len(columns))]

        def row_of(tag: str, texts: Sequence[str]) -> str:
            return f"<tr>{''.join(_cell(tag, text, right) for text, right in zip(texts, numeric, strict=True))}</tr>"

        table = (
            f'<div class="wide"><table><caption>{escape(caption)}</caption><thead>{row_of("th", columns)}</thead>'
            f"<tbody>{''.join(row_of('td', row) for row in listed)}</tbody></table></div>"
        )
        if len(listed) > _MOST_ROWS:
            table = f"<details><summary>{len(listed):,} rows: {escape(caption)}</summary>{table}</details>"
        return self._add(table)

    def queries(self, browser: QueryBrowser) -> Page:
        """Add queries with the passages that each system retrieves."""
        if len(browser.queries) < browser.num_queries:
            self.note(
                f"{len(browser.queries):,} of {browser.num_queries:,} queries: those on which systems differ most"
            )
        data = f'<script type="application/json">{browser.as_json()}</script>'
        return self._add(f'<div class="browser">{data}</div>')

    def picture(self, png: bytes, caption: str) -> Page:
        """Add a PNG, embedded in the page."""
        data = base64.b64encode(png).decode("ascii")
        return self._add(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def render(self, provenance: Sequence[tuple[str, str]] = ()) -> str:
        """Return the page; a last section lists names and fingerprints of its artefacts, if there are any."""
        if provenance:
            self.heading("Made from").table("fingerprints", ["artefact", "fingerprint"], provenance)
        title = escape(self.title)
        return (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            f"<title>{title}</title><style>\n{_STYLE}</style></head>\n"
            f"<body>\n<h1>{title}</h1>\n" + "\n".join(self._parts) + f"\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
        )


def _cell(tag: str, text: str, right: bool) -> str:
    if not right:
        prose = ' class="prose"' if len(text) > _LONGEST_LINE else ""
        return f"<{tag}{prose}>{escape(text)}</{tag}>"
    # A minus sign is as wide as a plus, so that digits line up; a hyphen is not.
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    # In a table that is too wide, an interval moves as a whole below its mean.
    mean, bracket, interval = text.partition(" [")
    return f'<{tag} class="number">{escape(mean + bracket + interval.replace(" ", chr(0xA0)))}</{tag}>'


def _is_number(text: str) -> bool:
    return text == ABSENT or re.match(r"[-+−<]?[\d,.]*\d(e[-+]?\d+)?%?( |$)", text) is not None
