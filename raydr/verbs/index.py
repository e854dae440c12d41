"""``raydr index``: a FAISS index over passage vectors."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, Model, Overrides, Overwrite, load


def run(config: ConfigFile, model: Model = "trained", set_: Overrides = None, overwrite: Overwrite = False) -> None:
    """Build the FAISS index over a model's passage vectors."""
    import raydr

    raydr.index(load(config, set_), model=model, overwrite=overwrite)
