"""No link of the documentation leads to a file, or to a heading, that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "jobs/*.md", "tests/*.md", "cluster/**/*.md", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that a page's headings go by, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ +(.+)$", _CODE.sub(_text_of_code, page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def _text_of_code(match: re.Match[str]) -> str:
    """A word in a heading; nothing of a block."""
    return "" if match[0].startswith("```") else match[0].strip("`")


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    broken = []
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_broken(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A `code` heading, (with) [a link](c)\n```\n# none\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[fine](b.md#a-code-heading-with-a-link) [gone](c.md) [no heading](b.md#none) [web](https://x.org/a)\n"
        "`[in code](d.md)` [below](#below)\n\n## Below\n"
    )
    assert broken_links(page) == ["c.md", "b.md#none"]


def test_every_page_of_the_documentation_is_linked() -> None:
    links = [
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
    ]
    linked = {path / "README.md" if path.is_dir() else path for path in links}
    assert [page.name for page in PAGES if "docs" in page.parts and page.resolve() not in linked] == []
