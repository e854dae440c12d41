"""What a working folder's store holds, to compare two of them."""

from __future__ import annotations

import json
from typing import Any

import fsspec

from raydr.store.identity import MANIFEST


def store_contents(workdir: str) -> dict[str, Any]:
    """Fingerprint and parts of every artefact by its place, and what a model's weights add up to.

    Args:
        workdir: a folder or a URL.
    """
    files, root = fsspec.url_to_fs(f"{workdir}/store")
    contents = {}
    for path in sorted(files.find(root)):
        if not path.endswith(f"/{MANIFEST}"):
            continue
        manifest = json.loads(files.cat(path))
        # The page of an evaluation says where its inputs lie.
        parts = {name: part["checksum"] for name, part in manifest["parts"].items() if not name.endswith(".html")}
        place = path.removeprefix(root).removesuffix(MANIFEST).strip("/")
        contents[place] = (manifest["fingerprint"], parts, manifest["info"].get("weights"))
    return contents
