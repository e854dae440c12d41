"""Operations verbs: ``plan``, ``doctor``, ``submit``, ``settings`` and ``gc``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from raydr.artefacts.places import Places
from raydr.config.reference import SettingGroup, find_settings, list_settings, settings_page
from raydr.config.run import AnyConfig, RunConfig
from raydr.console import console, counted, say
from raydr.errors import ConfigError
from raydr.ops.doctor.machine import Finding
from raydr.ops.doctor.services import any_broken, examine, show
from raydr.ops.submit.client import SubmittedJob, exit_status, follow, send
from raydr.ops.submit.request import Sent, build_request, check_places
from raydr.pipeline.forecast import Forecast
from raydr.pipeline.garbage import MIN_AGE_MINUTES, Garbage, find_garbage, remove_garbage
from raydr.pipeline.session import open_session
from raydr.verbs import VERBS
from raydr.verbs.app import load_command
from raydr.verbs.command import Again, ConfigFile, Overrides, set_options, takes_config


@takes_config
def plan(
    config: RunConfig,
    refresh: bool = False,
) -> Forecast:
    """Try the model on a sample of the texts, and forecast time, memory, disk and cost of every stage.

    Args:
        refresh: plan refresh rounds instead of a training and its evaluation.
    """
    from raydr.ops.plan.run import run_plan

    with open_session(config) as session:
        return run_plan(session, refresh)


def doctor(config: AnyConfig | None = None) -> list[Finding]:
    """Check this machine, and with a config the needs of the run; print and return the findings."""
    findings = examine(None if config is None else RunConfig.of(config))
    show(findings)
    return findings


def doctor_command(
    config: Annotated[str, typer.Argument(metavar="[CONFIG]")] = "",
    set_: Overrides = None,
) -> None:
    """Check versions, FAISS, GPUs, memory, disks, Ray, storage and MLflow, and suggest fixes.

    Exits with 1 if a check fails.

    Args:
        config: YAML file of a run whose storage, Ray, MLflow and data are checked.
    """
    if any_broken(doctor(RunConfig.load(config, set_) if config else None)):
        raise typer.Exit(1)


def submit(
    config: str | Path,
    verb: str,
    arguments: Sequence[str] = (),
    overrides: list[str] | None = None,
    sent: Sent | None = None,
    address: str = "",
    submission_id: str = "",
    resources: Mapping[str, float] | None = None,
    wait: bool = True,
) -> SubmittedJob:
    """Run a verb as a job on a Ray cluster, through Ray's Job API.

    Args:
        config: YAML file of the run, in the working directory.
        verb: verb of the command line.
        arguments: arguments of the verb, as on the command line.
        overrides: ``key.path=value``, as for ``--set``.
        sent: files and variables of the job.
        address: Ray's dashboard; default: ``RAY_API_SERVER_ADDRESS``, else this machine.
        submission_id: name of the job.
        resources: resources of the job's own process: ``num_cpus``, ``num_gpus``, ``memory``.
        wait: write the job's log to standard output until it ends.

    Raises:
        ConfigError: the request is invalid; nothing was sent.
        typer.BadParameter: the verb or one of its options is unknown.
        ClusterError: the cluster is unreachable or rejects the job.
    """
    if not isinstance(config, str | Path):
        raise ConfigError(
            f"submit needs a file, but the config is a {type(config).__name__}; expected the path of a YAML file in "
            "the working directory, or the name of a config that comes with raydr"
        )
    _check_command(verb, str(config), [*arguments, *set_options(overrides or [])])
    request = build_request(str(config), verb, arguments, overrides or [], sent, submission_id)
    job = send(request, address, {name: amount for name, amount in (resources or {}).items() if amount})
    return follow(job) if wait else job


def submit_command(
    config: ConfigFile,
    verb: Annotated[str, typer.Argument(metavar="VERB")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]")] = None,
    address: str = "",
    working_dir: str = ".",
    runtime_env: str = "",
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    require_env: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    python: str = "python",
    submission_id: str = "",
    entrypoint_num_cpus: Annotated[float, typer.Option(min=0)] = 0,
    entrypoint_memory: Annotated[int, typer.Option(min=0)] = 0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait")] = True,
    set_: Overrides = None,
    again: Again = False,
) -> None:
    """Run a verb as a job on a Ray cluster, follow its log, and exit with its status.

    raydr submit runs/nq.yaml train --set train.num_workers=8 -- --name npc

    Args:
        verb: verb of the job: train, encode, refresh, ...
        options: options of the verb, after --.
        address: Ray's dashboard; default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265.
        working_dir: folder whose files are sent with the job.
        runtime_env: YAML file with more of Ray's runtime environment, such as pip.
        env: a variable for the job, not a secret; repeatable.
        require_env: a variable, secret or not, that the cluster must have; repeatable.
        python: interpreter on the cluster that has Ray and raydr's dependencies.
        submission_id: name of the job; default: generated.
        entrypoint_num_cpus: CPUs reserved for the job's own process.
        entrypoint_memory: memory reserved for the job's own process, in bytes.
        wait: follow the log to the end and exit with the job's status.
    """
    arguments = [*(options or []), *(["--again"] if again else [])]
    sent = Sent(working_dir, _variables(env or []), require_env or [], runtime_env, python)
    resources = {"num_cpus": entrypoint_num_cpus, "memory": entrypoint_memory}
    job = submit(config, verb, arguments, set_, sent, address, submission_id, resources, wait=False)
    if wait:
        try:
            job = follow(job)
        except KeyboardInterrupt:
            _report_continuing_job(job)
            raise typer.Exit(130) from None
    raise typer.Exit(exit_status(job))


#: Options of verbs that name files or folders to write, as in the signatures.
_WRITTEN = ("output", "trec")


def _check_command(verb: str, config: str, arguments: list[str]) -> None:
    """Check the verb's options, with the settings and places among them, before anything is sent."""
    allowed = [name for name in VERBS if name != "submit" and " " not in name]
    if verb not in allowed:
        raise typer.BadParameter(f"{verb!r} is no verb; allowed: {', '.join(allowed)}", param_hint="VERB")
    options = load_command(verb).make_context(f"raydr {verb}", [config, *arguments]).params
    check_places(RunConfig.load(config, options.get("set_")), {name: options.get(name) or "" for name in _WRITTEN})


def _variables(assignments: list[str]) -> dict[str, str]:
    variables = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise typer.BadParameter(
                f"takes NAME=VALUE, got {assignment!r}; to require a variable on the cluster use --require-env "
                f"{assignment}",
                param_hint="--env",
            )
        variables[name] = value
    return variables


def _report_continuing_job(job: SubmittedJob) -> None:
    console.print(f"\nno longer following job {job.submission_id}; it continues", style="yellow", markup=False)
    for purpose in ("log", "stop"):
        console.print(f"  {purpose + ':':<6}{job.commands[purpose]}", markup=False)


def settings(part: str = "") -> list[SettingGroup]:
    """List the settings of a config in groups: key, type, default and meaning.

    Args:
        part: part of the listed keys, or of kinds of components.

    Raises:
        ConfigError: no name contains the part.

    >>> settings("first_rank")[0].settings[0].key
    'negatives.first_rank'
    """
    groups = find_settings(list_settings(RunConfig), part)
    if not groups:
        raise ConfigError(f"no setting or component has {part!r} in its name: see raydr settings for all")
    return groups


def settings_command(
    part: Annotated[str, typer.Argument(metavar="[PART]")] = "",
    markdown: bool = False,
) -> None:
    """List the settings of a run: key, type, default and meaning.

    Args:
        part: part of the listed keys, or of kinds of components.
        markdown: print the page docs/settings.md.
    """
    groups = settings(part)
    if markdown:
        typer.echo(settings_page(groups), nl=False)
        return
    for group in groups:
        typer.echo(f"\n{group.title}: {group.about.replace('``', '')}")
        for setting in group.settings:
            typer.echo(f"  {setting.key}: {setting.type.replace('`', '')}; default {setting.default}")
            typer.echo(textwrap.indent(textwrap.fill(setting.meaning.replace("`", ""), 100), "      "))


@takes_config
def gc(
    config: RunConfig,
    yes: bool = False,
    min_age_minutes: Annotated[float, typer.Option(min=0)] = MIN_AGE_MINUTES,
) -> list[Garbage]:
    """List artefacts that no name reaches, were set aside or are unfinished; remove them with --yes.

    Artefacts that a running command reads or makes are spared.

    Args:
        yes: remove them; default: only list.
        min_age_minutes: spare artefacts written within this time.
    """
    places = Places.of(config.workdir)
    garbage = remove_garbage(places, min_age_minutes) if yes else find_garbage(places, min_age_minutes)
    for entry in garbage:
        say(f"  {entry.folder}: {entry.num_bytes / 1e6:,.1f} MB, {entry.why}")
    total = sum(entry.num_bytes for entry in garbage) / 1e6
    done = "removed" if yes else "--yes removes them"
    spared = f"; artefacts written within {min_age_minutes:g} minutes are spared" if min_age_minutes else ""
    say(
        f"{counted(len(garbage), 'artefact')}, {total:,.1f} MB: {done}{spared}"
        if garbage
        else f"nothing to remove{spared}"
    )
    return garbage
