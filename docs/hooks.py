"""The site's home is the README, its API reference comes from docstrings; links out of ``docs/`` are told as paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import raydr

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file of the folder is."""
    home = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    modules = {name: getattr(raydr, name).__module__ for name in raydr.__all__ if not name.startswith("_")}
    api = "\n\n".join(f"::: {module}.{name}" for name, module in sorted(modules.items()))
    for name, content in (("index.md", home), ("api.md", f"# Python API\n\n{api}\n")):
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What lies beside the folder is in the checkout and not on the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def changed(match: re.Match[str]) -> str:
        image, text, link = match.groups()
        name = posixpath.normpath(posixpath.join("docs", folder, link.partition("#")[0]))
        in_docs = name.startswith("docs/") and (ROOT / name).exists()
        # The README's own links were taken for ones of the folder.
        beside = name.removeprefix("docs/")
        if in_docs and (ROOT / name).is_dir():
            return f"{image}[{text}]({link.rstrip('/')}/README.md)"
        if in_docs or re.match(r"[a-z]+:|#", link) or not (ROOT / beside).exists():
            return match[0]
        return f"{text} (`{beside}`)" if text.strip("`/") != beside.strip("/") else f"`{beside}`"

    return _LINK.sub(changed, markdown)
