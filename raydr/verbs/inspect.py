"""``raydr inspect``: what is in a prepared data set."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, Overrides, load


def run(config: ConfigFile, set_: Overrides = None) -> None:
    """Show counts, lengths, truncation, duplicates, gaps and examples of the prepared data."""
    import raydr

    raydr.inspect(load(config, set_))
