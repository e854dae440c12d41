"""From a verb's function to its command: ``raydr VERB CONFIG --set KEY=VALUE`` and the function's own options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_type_hints

import typer

ConfigFile = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="YAML file that describes the run, or the name of one that comes with raydr."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. train.num_epochs=5; repeatable."),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Make it anew; with other settings than before the names move, and the old artefacts stay."
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Make it although the forecast of raydr plan is above plan.confirm_above.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be made, and why; make nothing.")]
Model = Annotated[
    str, typer.Option("--model", help="Name of the model in the working folder; untrained is the checkpoint as it is.")
]
TrainSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the training split if left out.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the first test split if left out.")]


def command(function: Callable[..., Any], show: Callable[[Any], None] | None = None) -> Callable[..., None]:
    """The command of a verb.

    Args:
        function: of the Python API; its first parameter is the config, its others are annotated as options.
        show: prints what the function returns, where that is what was asked for.
    """
    options = dict(list(inspect.signature(function).parameters.items())[1:])
    annotations = _resolved(function, options)

    @functools.wraps(function)
    def run(config: str, set_: list[str] | None = None, yes: bool = False, **options: Any) -> None:
        from raydr.config.run import RunConfig

        overrides = [*(set_ or []), *(["plan.confirm_above=null"] if yes else [])]
        result = function(RunConfig.load(config, overrides), **options)
        if show is not None:
            show(result)

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [
            inspect.Parameter("config", keyword, annotation=ConfigFile),
            *(one.replace(kind=keyword, annotation=annotations[name]) for name, one in options.items()),
            inspect.Parameter("set_", keyword, default=None, annotation=Overrides),
            # Only what makes something asks.
            *([inspect.Parameter("yes", keyword, default=False, annotation=Yes)] if "dry_run" in options else []),
        ]
    )
    # Typer reads both.
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    del run.__wrapped__
    # What comes after the first paragraph is for readers of the Python API.
    run.__doc__ = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return run


def _resolved(function: Callable[..., Any], options: Iterable[str]) -> dict[str, Any]:
    """The annotations of some parameters as objects; the others need modules that take long to import."""
    wanted = {name: function.__annotations__[name] for name in options}
    holder = type("Options", (), {"__annotations__": wanted, "__module__": function.__module__})
    return get_type_hints(holder, include_extras=True)
