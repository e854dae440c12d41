"""Configs and search spaces that come with raydr, found by their name from any folder."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from raydr.errors import ConfigError

#: Folders of a checkout.
CONFIGS = ("configs", "configs/benchmarks", "configs/experiments", "jobs/recipes")
SPACES = ("tune_spaces",)

_PACKAGE = Path(__file__).parents[1]
#: Names that a message lists; of more the ones that look alike.
_LISTED = 12


def located(given: str | Path, folders: tuple[str, ...], what: str) -> Path:
    """The file at a path, or the one that comes with raydr under that name.

    Args:
        given: a path; or a name without suffix, for example ``so-codenn``, where no such file is there. A folder of
            that name, of the data perhaps, is none.
        folders: :data:`CONFIGS` or :data:`SPACES`.
        what: it is, for messages, for example ``config file``.

    Raises:
        ConfigError: a name that no file has.
    """
    path = Path(given)
    if path.is_file() or path.suffix or path.name != str(given):
        return path
    there = {file.stem: file for folder in folders for file in sorted(_folder(folder).glob("*.yaml"))}
    if path.name not in there and path.exists():
        return path
    if path.name not in there:
        near = sorted(there) if len(there) <= _LISTED else get_close_matches(path.name, there)
        hint = f"; with raydr come {', '.join(near)}" if near else ""
        raise ConfigError(f"there is no {what} {path}, and none of that name comes with raydr{hint}")
    return there[path.name]


def _folder(name: str) -> Path:
    """In a wheel within the package (``setup.py``), in a checkout beside it."""
    packed = _PACKAGE / "shipped" / Path(name).name
    return packed if packed.is_dir() else _PACKAGE.parent / name
