"""Arguments that all verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from raydr.config.run import RunConfig

ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file that describes the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. train.num_epochs=5; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results that were made with other settings.")]
Model = Annotated[
    str, typer.Option("--model", help="Name of the model in the working folder; untrained is the checkpoint as it is.")
]
TrainSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the training split if left out.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the first test split if left out.")]
EncodedSplit = Annotated[str, typer.Option("--split", help="Encode the queries of this split; the corpus if left out.")]


def load(path: str, overrides: list[str] | None) -> RunConfig:
    """The config with the command line's overrides."""
    from raydr.config.run import RunConfig

    return RunConfig.load(path, overrides)
