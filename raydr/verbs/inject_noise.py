"""``raydr inject-noise``: make the training split noisy on purpose, the truth kept."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, load


def run(config: ConfigFile, set_: Overrides = None, overwrite: Overwrite = False) -> None:
    """Put mismatched pairs or false negatives into the training split."""
    import raydr

    raydr.inject_noise(load(config, set_), overwrite=overwrite)
