"""Commands from functions of verbs: ``raydr VERB CONFIG --set KEY=VALUE`` and the function's options."""

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
#: Returns the suggested next verb for a result and its config, with settings and purpose; None if there is none.
NextStep = Callable[[Any, "RunConfig"], tuple[str, list[str], str] | None]

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
    typer.Option("--again", help="Make it again; if settings changed, names move and the old artefacts stay."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Run even if the forecast of raydr plan exceeds plan.confirm_above.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be made, and why; make nothing.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show details.")]
Model = Annotated[
    str, typer.Option("--model", help="Name of the model in the working folder; untrained is the bare checkpoint.")
]
TrainSplit = Annotated[str, typer.Option("--split", help="Split of the data set; default: the training split.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split of the data set; default: the first test split.")]


#: Suggested next verb after a verb that made something.
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
    """Wrap a verb so that its config may take any form of :meth:`RunConfig.of`."""

    @functools.wraps(verb)
    def called(config: GivenConfig, *arguments: P.args, **options: P.kwargs) -> T:
        from raydr.config.run import RunConfig

        return verb(RunConfig.of(config), *arguments, **options)

    # Names of configs are accepted beyond the declared type.
    return called  # type: ignore[return-value]


def program(name: str) -> str:
    """Return the shell command of a program of this environment."""
    return name if shutil.which(name) else f"{shlex.quote(sys.executable)} -m {name}"


def suggest_next(verb: str, config: str, set_: list[str] | None, purpose: str = "") -> None:
    """Print the suggested next command and its purpose."""
    from raydr.console import say

    options = [part for override in set_ or [] for part in ("--set", override)]
    say(f"next{', ' * bool(purpose)}{purpose}: {program('raydr')} {verb} {shlex.join([config, *options])}")


def command(
    function: Callable[..., Any], show: Callable[[Any], None] | None = None, then: NextStep | None = None
) -> Callable[..., None]:
    """Make the command of a verb.

    Args:
        function: function of the Python API; its first parameter is the config, the others become options.
        show: prints the result.
        then: suggests the next verb for the result.
    """
    [_, *options] = inspect.signature(function).parameters
    # Only verbs that make something need confirmation; other verbs may have their own --yes.
    asks = "dry_run" in options

    @functools.wraps(function)
    def run(config: str, set_: list[str] | None = None, **options: Any) -> None:
        from raydr.config.run import RunConfig

        confirmed = asks and options.pop("yes")
        run_config = RunConfig.load(config, overrides(set_, confirmed))
        result = function(run_config, **options)
        if show is not None:
            show(result)
        if result and then is not None:
            if step := then(result, run_config):
                verb, more, purpose = step
                suggest_next(verb, config, [*(set_ or []), *more], purpose)
        elif result and function.__name__ in _NEXT:
            suggest_next(_NEXT[function.__name__], config, set_)

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
            from raydr.console import be_verbose

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
    # Annotations of other parameters may need slow imports.
    wanted = {name: function.__annotations__[name] for name in names}
    holder = type("Options", (), {"__annotations__": wanted, "__module__": function.__module__})
    hints = get_type_hints(holder, include_extras=True)
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
    return [parameters[name].replace(kind=Parameter.KEYWORD_ONLY, annotation=described(name)) for name in wanted]


@contextmanager
def _handle_sigterm() -> Iterator[list[int]]:
    """Handle SIGTERM like Ctrl-C within the block; the list then holds the signal's number."""
    signals = list[int]()

    def end(number: int, frame: Any) -> None:
        # Ray may replace the interrupt by its own. A second signal does not wait.
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
def _repeat_ignored_interrupts() -> Iterator[None]:
    """Repeat an interrupt that Python ignores, as in a destructor during garbage collection."""
    before = sys.unraisablehook

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            before(ignored)
            return
        # An interrupt raised here would be ignored too.
        timer = threading.Timer(0.01, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, the system, PyTorch or Ray reports exhausted memory."""
    # Compare Ray's error class by name, without importing Ray.
    named = isinstance(error, MemoryError) or "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    return named or any(words in text for words in ("allocate memory", "out of memory", "bad_alloc"))


@contextmanager
def exit_status(what: str) -> Iterator[None]:
    """Run a block as a command, with its exit status.

    Args:
        what: what to repeat after Ctrl-C or SIGTERM, ``command`` or ``job``.
    """
    # Ray's progress bars and the tokenizers' fork warnings would hide the command's output.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from raydr.errors import RaydrError

    signals = list[int]()
    try:
        with _repeat_ignored_interrupts(), _handle_sigterm() as signals:
            yield
    except RaydrError as error:
        from raydr.console import prose

        prose(f"error: {error}", "red")
        sys.exit(error.exit_code)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        from raydr.console import prose

        reason = " ".join(str(error).split())[-300:] or "allocation failed"
        prose(
            f"error: out of memory ({reason}). Finished parts are kept. Use smaller batches "
            "(train.batch_size, encode.token_budget) or fewer workers (encode.max_actors, ray.num_cpus)",
            "red",
        )
        sys.exit(1)
    except KeyboardInterrupt:
        from raydr.console import prose
        from raydr.distributed.cluster import step_threads

        # --again would remove finished parts.
        without = " without --again" if "--again" in sys.argv else ""
        how, status = ("ended by SIGTERM", 143) if signals else ("interrupted", 130)
        prose(f"{how}: finished parts are kept; run the same {what}{without} to resume", "yellow")
        if step_threads():
            # Threads cannot be stopped, and exit would wait for them; Ray's processes end with this process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)
