"""The request of a job: command, files and environment of a verb. Nothing here talks to Ray."""

from __future__ import annotations

import secrets as randomness
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydr.config.files import CONFIGS, located, read_mapping
from raydr.config.run import RunConfig, check_name
from raydr.config.secrets import holds_credentials, looks_secret, texts_of
from raydr.errors import ConfigError

#: The folder of raydr itself.
_PACKAGE = Path(__file__).parents[2]
#: Never sent: results, data, environments and caches. A leading slash means the working directory itself: without it,
#: ``data`` would also leave out the package ``raydr/data``. Ray also obeys .gitignore and .rayignore.
EXCLUDES = (
    *("/work", "/data", "/mlruns", "/mlflow.db", "/build", "/dist"),
    *(".git", ".venv", "venv", "__pycache__", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
)
#: Variable that holds the names of the variables that the job's machine must have.
REQUIRED_VARIABLES = "RAYDR_REQUIRED_ENV"

_ELSEWHERE = (
    "Secrets of a job are set on the machines of the cluster and never sent, since Ray shows a job's command and "
    "variables to everyone who reaches it. docs/cluster.md says how; --require-env NAME checks it there"
)


@dataclass(frozen=True)
class JobRequest:
    """A job in the terms of Ray's Job API."""

    submission_id: str
    entrypoint: str
    runtime_env: dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """Files and environment that are sent with a job's command.

    Args:
        working_dir: folder whose files are sent; the job runs in a copy of it.
        env: variables for the job, none of them secret.
        require_env: names of variables that the job's machine must have; the job fails at once if any is not set.
        runtime_env: a YAML file with more of Ray's runtime environment, such as ``pip``.
        python: the interpreter on the cluster that has Ray and raydr's dependencies.
    """

    working_dir: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    require_env: Sequence[str] = ()
    runtime_env: str = ""
    python: str = "python"


def build_request(
    config_file: str,
    verb: str,
    arguments: Sequence[str] = (),
    overrides: Sequence[str] = (),
    sent: Sent | None = None,
    submission_id: str = "",
) -> JobRequest:
    """Return the job that runs ``raydr VERB CONFIG ...`` on a cluster.

    Raises:
        ConfigError: the config is wrong or would not mean the same on the cluster, or a secret would be sent.
    """
    sent = sent or Sent()
    working_dir = Path(sent.working_dir).expanduser().absolute()
    if not working_dir.is_dir():
        raise ConfigError(f"there is no folder {working_dir}: --working-dir is the folder whose files the job needs")
    config = RunConfig.load(config_file, list(overrides))
    check_places(config)
    inside = _inside(config_file, working_dir)
    for what, texts in (("--python", [sent.python]), ("--submission-id", [submission_id]), (verb, arguments)):
        for text in texts:
            refuse_secret(text, what if what != verb else f"an argument of {verb}")
    if submission_id:
        # Ray makes it part of a URL and of a file's name.
        check_name(submission_id, "--submission-id")
    command = [sent.python, "-m", "raydr", verb, inside, *arguments]
    command += [part for override in overrides for part in ("--set", override)]
    return JobRequest(
        submission_id=submission_id or f"{config.name}-{verb}-{randomness.token_hex(4)}",
        entrypoint=shlex.join(command),
        runtime_env=runtime_environment(working_dir, sent, _left_out(config, working_dir, inside)),
    )


def refuse_secret(text: str, what: str) -> None:
    """Refuse to send or show a text with credentials.

    Raises:
        ConfigError: the text is a URL that holds credentials.
    """
    if holds_credentials(text):
        raise ConfigError(f"{what} is a URL that holds credentials. {_ELSEWHERE}")


def check_places(config: RunConfig, written: Mapping[str, str] | None = None) -> None:
    """Refuse relative paths: a job runs in a copy of the working directory that is deleted with the cluster.

    Args:
        config: the run.
        written: files and folders that the job writes, by the name of the option.

    Raises:
        ConfigError: settings are relative paths, which the message names; or a bucket cannot hold the tracking file.
    """
    if config.tracking.enabled and not config.tracking.uri and "://" in config.workdir:
        raise ConfigError(
            f"tracking.uri is empty, and the working folder {config.workdir} cannot hold a SQLite file: set "
            "tracking.uri to an MLflow server that the cluster reaches, or tracking.enabled=false"
        )
    reader = config.data.reader
    relative = {key: place for key, place in (written or {}).items() if place and not _is_absolute(place)}
    for key, text in texts_of(config.model_dump(mode="json")):
        # An SQLite path is relative with three slashes, and absolute with four.
        place = text.removeprefix("sqlite:///")
        # A name on a hub is the same everywhere.
        on_hub = key.endswith("checkpoint") or (reader.name == "huggingface" and key == "data.reader.path")
        file = key.startswith("data.reader.files.") and not getattr(reader, "path", "")
        tracked = key == "tracking.uri" and config.tracking.enabled
        is_place = on_hub or file or tracked or key in ("workdir", "data.reader.path")
        if not is_place or not place or _is_absolute(place):
            continue
        if not on_hub or place.startswith((".", "~")) or Path(place).exists():
            relative[key] = place
    if relative:
        named = ", ".join(f"{key} {place!r}" for key, place in relative.items())
        raise ConfigError(
            f"{named}: a relative path. A job runs in a copy of the working directory on another machine, and the copy "
            f"is deleted with the cluster. Give a folder that every machine of the cluster sees, or {_remote(relative)}"
        )


def _is_absolute(place: str) -> bool:
    return place.startswith("/") or "://" in place


def _remote(keys: Iterable[str]) -> str:
    """Return what a cluster reads in place of a folder, for the first of some settings."""
    key = next(iter(keys))
    where = "http://mlflow:5000" if key == "tracking.uri" else "s3://BUCKET/..."
    on_hub = "a name on the hub, or " if key.endswith("checkpoint") else ""
    return f"{on_hub}a URL: --set {key}={where}" if "." in key or key == "workdir" else f"a URL: {where}"


def _inside(config_file: str, working_dir: Path) -> str:
    """Return the config's path in the job's copy of the working directory."""
    path = located(config_file, CONFIGS, "config file").expanduser().absolute()
    try:
        inside = path.resolve().relative_to(working_dir.resolve())
    except ValueError:
        raise ConfigError(
            f"{path} is not in the working directory {working_dir}, whose files are sent to the cluster: move it "
            f"there, or submit from its folder with --working-dir {path.parent}"
        ) from None
    if f"/{inside.parts[0]}" in EXCLUDES or any(part in EXCLUDES for part in inside.parts):
        raise ConfigError(
            f"{path} is in a folder that is not sent to the cluster ({', '.join(EXCLUDES)}): copy it elsewhere in "
            f"{working_dir}"
        )
    return inside.as_posix()


def _left_out(config: RunConfig, working_dir: Path, config_file: str) -> list[str]:
    """Return the results and the data of a run within the working directory, which Ray would send as well."""
    places = (Path(place) for place in (config.workdir, getattr(config.data.reader, "path", "")) if place[:1] == "/")
    inside = [place.relative_to(working_dir) for place in places if place.is_relative_to(working_dir)]
    return [f"/{place}" for place in inside if not Path(config_file).is_relative_to(place)]


def runtime_environment(working_dir: Path, sent: Sent, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return Ray's runtime environment of a job.

    Args:
        working_dir: folder whose files are sent.
        sent: the user's options.
        left_out: folders of the run in it that are not sent.

    Raises:
        ConfigError: it would hold a secret, or the user's file is not readable.
    """
    runtime_env: dict[str, Any] = {}
    if sent.runtime_env:
        what = "of Ray's runtime environment (pip, env_vars, ...)"
        runtime_env = dict(read_mapping(sent.runtime_env, "runtime environment", what))
    if "working_dir" in runtime_env:
        raise ConfigError(f"{sent.runtime_env} has a working_dir: give it with --working-dir instead")
    variables = {**(runtime_env.pop("env_vars", None) or {}), **sent.env}
    for key, text in texts_of(runtime_env):
        refuse_secret(text, f"{key} of --runtime-env")
    for name, value in variables.items():
        if looks_secret(name) or holds_credentials(str(value)):
            raise ConfigError(f"the variable {name} looks like a secret. {_ELSEWHERE}")
    if sent.require_env:
        variables[REQUIRED_VARIABLES] = ",".join(sent.require_env)
    # Log lines arrive unbuffered, and tables are wider than 80 columns.
    variables = {"PYTHONUNBUFFERED": "1", "COLUMNS": "140", **{key: str(value) for key, value in variables.items()}}
    excludes = [*EXCLUDES, *left_out, *(runtime_env.get("excludes") or [])]
    runtime_env |= {"working_dir": str(working_dir), "excludes": excludes, "env_vars": variables}
    if not (working_dir / "raydr" / "__init__.py").is_file():
        # The job runs this copy of raydr, whatever version the cluster's image has.
        runtime_env["py_modules"] = [*(runtime_env.get("py_modules") or []), str(_PACKAGE)]
    return runtime_env


def check_required_variables(environ: Mapping[str, str]) -> None:
    """Check, in the job, that its machine has the variables of ``--require-env``.

    Raises:
        ConfigError: variables are not set, which the message names.
    """
    wanted = [name for name in environ.get(REQUIRED_VARIABLES, "").split(",") if name]
    missing = [name for name in wanted if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"not set on this machine of the cluster: {', '.join(missing)} (asked for with --require-env). Set them "
            "where Ray is started on every machine; docs/cluster.md says how"
        )
