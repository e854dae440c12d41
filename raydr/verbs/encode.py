"""``raydr encode``: texts to vectors."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, EncodedSplit, Model, Overrides, Overwrite, load


def run(
    config: ConfigFile,
    model: Model = "trained",
    split: EncodedSplit = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode the corpus, or with --split its queries; an interrupted run goes on with the missing parts."""
    import raydr

    raydr.encode(load(config, set_), model=model, split=split, overwrite=overwrite)
