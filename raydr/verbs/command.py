"""Commands from functions of verbs: ``raydr VERB CONFIG --set KEY=VALUE`` and the function's options."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import typer

from raydr.artefacts.places import BM25, TRAINED, UNTRAINED
from raydr.config.run import AnyConfig, RunConfig, is_ranker
from raydr.console import be_verbose, say
from raydr.errors import ConfigError
from raydr.evaluation.config import FUSED

P = ParamSpec("P")
T = TypeVar("T")
#: Returns the suggested next verb for a result and its config, with options and purpose; None if there is none.
NextStep = Callable[[Any, RunConfig], tuple[str, list[str], str] | None]

ConfigFile = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="YAML file of the run, or the name of a config that comes with raydr."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. train.num_epochs=5; repeatable."),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Make it again; after a change of settings, make what is missing and move names."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Run even if the forecast of raydr plan exceeds plan.confirm_above.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be made, and why; make nothing.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show details.")]
Model = Annotated[
    str, typer.Option("--model", help="Name of the model in the working folder; untrained is the bare checkpoint.")
]
TrainSplit = Annotated[str, typer.Option("--split", help="Split of the data set; default: the training split.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split of the data set; default: the first test split.")]


#: Verbs that make something to evaluate.
_EVALUATED = ("train", "encode", "index", "search", "rerank", "fuse", "import_run", "import_vectors")


def takes_config(verb: Callable[Concatenate[RunConfig, P], T]) -> Callable[Concatenate[AnyConfig, P], T]:
    """Wrap a verb so that its config may take any form of :meth:`RunConfig.of`."""

    @functools.wraps(verb)
    def called(config: AnyConfig, *arguments: P.args, **options: P.kwargs) -> T:
        return verb(RunConfig.of(config), *arguments, **options)

    # Names of configs are accepted beyond the declared type.
    return called  # type: ignore[return-value]


def first_test_split(config: RunConfig) -> str:
    """Return the default split.

    Raises:
        ConfigError: there is no test split.
    """
    if not config.data.test_splits:
        raise ConfigError("data.test_splits is empty: set it, or name a split with --split")
    return config.data.test_splits[0]


def program(name: str) -> str:
    """Return the shell command of a program of this environment."""
    return name if shutil.which(name) else f"{shlex.quote(sys.executable)} -m {name}"


def set_options(settings: Iterable[str]) -> list[str]:
    """Return the options that override settings."""
    return [part for setting in settings for part in ("--set", setting)]


def settings_to_draw_from(miner: str, config: RunConfig) -> list[str]:
    """Return the settings with which training draws a miner's candidates; the config's own miner if empty."""
    own = config.negatives.miner if config.negatives is not None else ""
    miner = miner or own or BM25
    settings = [f"negatives.miner={miner}"] if miner != own else []
    return settings if config.train.num_hard_negatives else [*settings, "train.num_hard_negatives=1"]


def next_by_options(verb: str, options: Mapping[str, Any], config: RunConfig) -> tuple[str, list[str]] | None:
    """Return the verb that uses what a verb has made, with its options; None if none does."""
    data, split = config.data, options.get("split") or ""
    if verb == "inject_noise":
        return "train", []
    if verb == "mine":
        settings = settings_to_draw_from(options["miner"], config)
        return ("train", set_options(settings)) if split in ("", data.train_split) else None
    if verb not in _EVALUATED:
        return None
    name = options.get("name") or options.get("model") or options.get("system", "")
    if is_ranker(name) and verb == "train":
        return "rerank", [] if name == config.rerank.model else ["--by", name]
    if split not in ("", *data.test_splits) and verb != "import_vectors":
        mined = verb in ("search", "import_run") and split == data.train_split
        return ("mine", ["--miner", name]) if mined else None
    # Existing runs are evaluated anyway.
    known = verb in ("rerank", "fuse", "import_run") or name in (BM25, UNTRAINED, TRAINED, FUSED, *config.variants)
    return "evaluate", [] if known else ["--system", name]


def suggest_next(
    verb: str, config: str, set_: list[str] | None, purpose: str = "", options: Sequence[str] = ()
) -> None:
    """Print the suggested next command and its purpose."""
    command_line = shlex.join([config, *set_options(set_ or []), *options])
    say(f"next{', ' * bool(purpose)}{purpose}: {program('raydr')} {verb} {command_line}")


def command(
    function: Callable[..., Any], show: Callable[[Any], None] | None = None, then: NextStep | None = None
) -> Callable[..., None]:
    """Make the command of a verb.

    Args:
        function: function of the Python API; its first parameter is the config, the others become options.
        show: function that prints the result.
        then: function that suggests the next verb for the result.
    """
    [_, *options] = inspect.signature(function).parameters
    # Only verbs that make something need confirmation; other verbs may have their own --yes.
    asks = "dry_run" in options

    @functools.wraps(function)
    def run(config: str, set_: list[str] | None = None, **options: Any) -> None:
        confirmed = asks and options.pop("yes")
        run_config = RunConfig.load(config, overrides(set_, confirmed))
        result = function(run_config, **options)
        if show is not None:
            show(result)
        if result and then is not None:
            if step := then(result, run_config):
                verb, more, purpose = step
                suggest_next(verb, config, set_, purpose, more)
        elif result and (following := next_by_options(function.__name__, options, run_config)):
            suggest_next(following[0], config, set_, options=following[1])

    keyword = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter("config", keyword, annotation=ConfigFile),
        *_described(function, options),
        Parameter("set_", keyword, default=None, annotation=Overrides),
        *([Parameter("yes", keyword, default=False, annotation=Yes)] if asks else []),
    ]
    # Later paragraphs are for readers of the Python API.
    return _read_by_typer(run, parameters, (inspect.getdoc(function) or "").partition("\n\n")[0])


def own_command(function: Callable[..., None]) -> Callable[..., None]:
    """Make the command of a verb whose arguments differ from its function's."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        function(**options)

    parameters = _described(function, inspect.signature(function).parameters)
    return _read_by_typer(run, parameters, (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0])


def overrides(set_: list[str] | None, yes: bool) -> list[str]:
    """Return the settings that a command line overrides."""
    return [*(set_ or []), *(["plan.confirm_above=null"] if yes else [])]


def _read_by_typer(run: Callable[..., None], parameters: list[Parameter], text: str) -> Callable[..., None]:
    """Return the command with these options and ``-v``."""

    @functools.wraps(run)
    def run_with_verbosity(verbose: bool = False, **options: Any) -> None:
        if verbose:
            be_verbose()
        run(**options)

    parameters = [*parameters, Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)]
    # Typer reads both attributes.
    run_with_verbosity.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_with_verbosity.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run_with_verbosity.__wrapped__
    run_with_verbosity.__doc__ = text
    return run_with_verbosity


def _described(function: Callable[..., Any], names: Iterable[str]) -> list[Parameter]:
    """Return Typer parameters: each option takes its name and help from the function's parameter.

    Constraints, such as a minimum, come from the annotation.
    """
    hints = get_type_hints(function, include_extras=True)
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    descriptions = dict(re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE))

    def described(name: str) -> Any:
        if get_origin(hints[name]) is not Annotated:
            # Typer's default flag name would add --no-.
            return Annotated[hints[name], typer.Option(f"--{name.replace('_', '-')}", help=sentence(name))]
        type_, info = get_args(hints[name])
        info = copy.copy(info)
        info.help = info.help or sentence(name)
        return Annotated[type_, info]

    def sentence(name: str) -> str:
        text = " ".join(descriptions[name].split())
        return text[0].upper() + text[1:]

    parameters = inspect.signature(function).parameters
    return [parameters[name].replace(kind=Parameter.KEYWORD_ONLY, annotation=described(name)) for name in names]
