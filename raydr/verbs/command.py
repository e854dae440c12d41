"""From a verb's function to its command: ``raydr VERB CONFIG --set KEY=VALUE`` and the function's own options."""

from __future__ import annotations

import _thread
import copy
import functools
import inspect
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from raydr.config.run import GivenConfig, RunConfig

P = ParamSpec("P")
T = TypeVar("T")
#: From what a verb returns to the verb that acts on it, settings for that, and what for; None if nothing does.
NextStep = Callable[[Any], tuple[str, list[str], str] | None]

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
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more of what is done, and why.")]
Model = Annotated[
    str, typer.Option("--model", help="Name of the model in the working folder; untrained is the checkpoint as it is.")
]
TrainSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the training split if left out.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split of the data set; the first test split if left out.")]


#: What people ask for next, once a verb has made something.
_NEXT = {
    "inject_noise": "train",
    "mine": "train",
    "train": "evaluate",
    "encode": "evaluate",
    "index": "evaluate",
    "search": "evaluate",
    "rerank": "evaluate",
    "fuse": "evaluate",
    "import_run": "evaluate",
    "import_vectors": "evaluate",
}


def takes_config(verb: Callable[Concatenate[RunConfig, P], T]) -> Callable[Concatenate[GivenConfig, P], T]:
    """A verb of the Python API, called with a config in any form that :meth:`RunConfig.of` takes."""

    @functools.wraps(verb)
    def called(config: GivenConfig, *arguments: P.args, **options: P.kwargs) -> T:
        from raydr.config.run import RunConfig

        return verb(RunConfig.of(config), *arguments, **options)

    # That the config may be given by its name too is more than the type says.
    return called  # type: ignore[return-value]


def program(name: str) -> str:
    """How a program of this environment is called from any shell."""
    return name if shutil.which(name) else f"{shlex.quote(sys.executable)} -m {name}"


def tell_next(verb: str, config: str, set_: list[str] | None, purpose: str = "") -> None:
    """The last line of a verb: the command that most people give after it, and what for."""
    from raydr.console import say

    options = [part for override in set_ or [] for part in ("--set", override)]
    say(f"next{', ' * bool(purpose)}{purpose}: {program('raydr')} {verb} {shlex.join([config, *options])}")


def command(
    function: Callable[..., Any], show: Callable[[Any], None] | None = None, then: NextStep | None = None
) -> Callable[..., None]:
    """The command of a verb.

    Args:
        function: of the Python API; its first parameter is the config, its others become options.
        show: prints what the function returns, where that is what was asked for.
        then: says what acts on what the function returns, where that depends on it.
    """
    [_, *options] = inspect.signature(function).parameters
    # Only what makes something asks; a verb may have a --yes of its own.
    asks = "dry_run" in options

    @functools.wraps(function)
    def run(config: str, set_: list[str] | None = None, **options: Any) -> None:
        from raydr.config.run import RunConfig

        confirmed = asks and options.pop("yes")
        result = function(RunConfig.load(config, overrides(set_, confirmed)), **options)
        if show is not None:
            show(result)
        if result and then is not None:
            if step := then(result):
                verb, more, purpose = step
                tell_next(verb, config, [*(set_ or []), *more], purpose)
        elif result and function.__name__ in _NEXT:
            tell_next(_NEXT[function.__name__], config, set_)

    keyword = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter("config", keyword, annotation=ConfigFile),
        *_described(function, options),
        Parameter("set_", keyword, default=None, annotation=Overrides),
        *([Parameter("yes", keyword, default=False, annotation=Yes)] if asks else []),
    ]
    # What comes after the first paragraph is for readers of the Python API.
    return _read_by_typer(run, parameters, (inspect.getdoc(function) or "").partition("\n\n")[0])


def own_command(function: Callable[..., None]) -> Callable[..., None]:
    """The command of a verb that takes something else than the function of the Python API does."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        function(**options)

    parameters = _described(function, inspect.signature(function).parameters)
    return _read_by_typer(run, parameters, (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0])


def overrides(set_: list[str] | None, yes: bool) -> list[str]:
    """The settings that a command line changes."""
    return [*(set_ or []), *(["plan.confirm_above=null"] if yes else [])]


def _read_by_typer(run: Callable[..., None], parameters: list[Parameter], text: str) -> Callable[..., None]:
    """The command with these options, and ``-v``."""

    @functools.wraps(run)
    def run_with_verbosity(verbose: bool = False, **options: Any) -> None:
        if verbose:
            from raydr.console import be_verbose

            be_verbose()
        run(**options)

    parameters = [*parameters, Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)]
    # Typer reads both.
    run_with_verbosity.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_with_verbosity.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run_with_verbosity.__wrapped__
    run_with_verbosity.__doc__ = text
    return run_with_verbosity


def _described(function: Callable[..., Any], names: Iterable[str]) -> list[Parameter]:
    """Parameters as Typer reads them: an option is called as its parameter, and its docstring says what it is for.

    Where there is more to say, such as the least value of a number, the annotation says it.
    """
    # Only these: the annotations of the others may need modules that take long to import.
    wanted = {name: function.__annotations__[name] for name in names}
    holder = type("Options", (), {"__annotations__": wanted, "__module__": function.__module__})
    hints = get_type_hints(holder, include_extras=True)
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    descriptions = dict(re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE))

    def described(name: str) -> Any:
        if get_origin(hints[name]) is not Annotated:
            # Typer's own name of a flag would have a --no- beside it.
            return Annotated[hints[name], typer.Option(f"--{name.replace('_', '-')}", help=sentence(name))]
        type_, info = get_args(hints[name])
        info = copy.copy(info)
        info.help = info.help or sentence(name)
        return Annotated[type_, info]

    def sentence(name: str) -> str:
        text = " ".join(descriptions[name].split())
        return text[0].upper() + text[1:]

    parameters = inspect.signature(function).parameters
    return [parameters[name].replace(kind=Parameter.KEYWORD_ONLY, annotation=described(name)) for name in wanted]


@contextmanager
def _ended_by_sigterm() -> Iterator[list[int]]:
    """SIGTERM ends the block as Ctrl-C does, where it would be over without a word; the list then holds its number."""
    signals = list[int]()

    def end(number: int, frame: Any) -> None:
        # Ray raises an interrupt of its own in place of this one. A second signal does not wait.
        signals.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _not_swallowed() -> Iterator[None]:
    """An interrupt comes again where Python ignores it, as in a destructor that garbage collection calls."""
    before = sys.unraisablehook

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            before(ignored)
            return
        # Not from here: this too is called where interrupts are ignored.
        timer = threading.Timer(0.01, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, the system, PyTorch or Ray says that there was no memory left; each has its own words."""
    # The class of Ray's error is known without the import of Ray, which may not be loaded.
    named = isinstance(error, MemoryError) or "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    return named or any(words in text for words in ("allocate memory", "out of memory", "bad_alloc"))


@contextmanager
def exit_status(what: str) -> Iterator[None]:
    """Run a block as a command.

    Args:
        what: is to be done again after Ctrl-C or SIGTERM, ``command`` or ``job``.
    """
    # Ray's own progress bars and the tokenizers' fork warnings would drown what the commands say.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from raydr.errors import RaydrError

    signals = list[int]()
    try:
        with _not_swallowed(), _ended_by_sigterm() as signals:
            yield
    except RaydrError as error:
        from raydr.console import prose

        prose(f"error: {error}", "red")
        sys.exit(error.exit_code)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        from raydr.console import prose

        reason = " ".join(str(error).split())[-300:] or "no more could be had"
        prose(
            f"error: memory has run out ({reason}). What is finished is kept. Less is held with smaller batches "
            "(train.batch_size, encode.token_budget) and fewer workers (encode.max_actors, ray.num_cpus)",
            "red",
        )
        sys.exit(1)
    except KeyboardInterrupt:
        from raydr.console import prose
        from raydr.distributed.cluster import step_threads

        # That would remove what is finished.
        without = " without --again" if "--again" in sys.argv else ""
        how, status = ("ended by SIGTERM", 143) if signals else ("interrupted", 130)
        prose(f"{how}: what is finished is kept; the same {what}{without} goes on from there", "yellow")
        if step_threads():
            # They cannot be ended otherwise, and to leave would be to wait for them; Ray's processes go with this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)
