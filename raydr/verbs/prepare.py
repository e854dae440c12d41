"""``raydr prepare``: raw files to a corpus and a data set."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, load


def run(config: ConfigFile, set_: Overrides = None, overwrite: Overwrite = False) -> None:
    """Read the raw files into a corpus and a data set."""
    import raydr

    raydr.prepare(load(config, set_), overwrite=overwrite)
