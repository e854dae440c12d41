"""One self-contained HTML page: headings, paragraphs, tables and PNG pictures, readable without a network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; white-space: nowrap; }
td.number, th.number { text-align: right; }
img { max-width: 100%; background: white; }
figcaption, .note { color: #777; font-size: .9rem; }
code { font-size: .9em; }
"""


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

    def note(self, text: str) -> Page:
        """A small remark."""
        self._parts.append(f'<p class="note">{escape(text)}</p>')
        return self

    def preformatted(self, text: str) -> Page:
        self._parts.append(f'<div class="wide"><pre>{escape(text)}</pre></div>')
        return self

    def table(self, caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Page:
        """Columns whose cells all are numbers (or begin as one) are aligned to the right."""
        listed = [[str(cell) for cell in row] for row in rows]
        numeric = [bool(listed) and all(_is_number(row[at]) for row in listed) for at in range(len(columns))]
        head = "".join(_cell("th", column, right) for column, right in zip(columns, numeric, strict=True))
        body = "".join(
            "<tr>" + "".join(_cell("td", cell, right) for cell, right in zip(row, numeric, strict=True)) + "</tr>"
            for row in listed
        )
        self._parts.append(
            f'<div class="wide"><table><caption>{escape(caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
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
            f"<title>{title}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n<h1>{title}</h1>\n" + "\n".join(self._parts) + "\n</body>\n</html>\n"
        )


def _cell(tag: str, text: str, right: bool) -> str:
    return f'<{tag} class="number">{escape(text)}</{tag}>' if right else f"<{tag}>{escape(text)}</{tag}>"


def _is_number(text: str) -> bool:
    first = text.split(" ")[0].lstrip("+-−<")
    return first.replace(",", "").replace(".", "").replace("%", "").isdigit()
