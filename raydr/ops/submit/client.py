"""A client of Ray's Job API: it sends a job, follows the log and explains errors."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from raydr.console import duration, say, show_summary, warn
from raydr.distributed.cluster import knock
from raydr.errors import ClusterError, ConfigError, first_line
from raydr.ops.submit.request import JobRequest, refuse_secret

T = TypeVar("T")
#: Address of Ray's dashboard on the head node, or behind a tunnel to it.
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
#: Failed requests in a row after which a job counts as lost.
RETRIES = 5
#: Seconds between two requests, until a request times out, and of silence after which a line is printed.
POLL_S, ANSWER_S, HEARTBEAT_S = 2.0, 30.0, 60.0

#: Variables that Ray prefers to an address in the program.
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


@dataclass(frozen=True)
class SubmittedJob:
    """A job on a cluster, with its last known state."""

    submission_id: str
    address: str
    status: str = "PENDING"
    #: Exit code of the job's process; None before its end, or if it never ran.
    exit_code: int | None = None
    message: str = ""

    @property
    def commands(self) -> dict[str, str]:
        """Commands and page for the job, by purpose."""
        at = f"{self.submission_id} --address {self.address}"
        # An address without a scheme is the scheduler's: Ray finds the dashboard itself.
        page = {"dashboard": f"{self.address}/#/jobs/{self.submission_id}"} if "://" in self.address else {}
        return page | {
            "status": f"ray job status {at}",
            "log": f"ray job logs {at} --follow",
            "stop": f"ray job stop {at}",
        }


def resolve_address(address: str, environ: Mapping[str, str]) -> str:
    """Return the dashboard's address: ``address``, else the environment's, else this machine's.

    Raises:
        ConfigError: the environment names another address, which Ray would prefer; or the address holds a secret.

    >>> resolve_address("", {}), resolve_address("", {"RAY_API_SERVER_ADDRESS": "http://head:8265/"})
    ('http://127.0.0.1:8265', 'http://head:8265')
    """
    refuse_secret(address, "--address")
    for name in _ADDRESS_VARIABLES:
        value = environ.get(name, "").rstrip("/")
        if value and address and value != address.rstrip("/"):
            raise ConfigError(
                f"--address is {address}, but {name} is {value}, and Ray's Job API prefers the variable: unset {name}"
            )
        if value:
            return value
    return address.rstrip("/") or DEFAULT_ADDRESS


def send(request: JobRequest, address: str, resources: Mapping[str, float] | None = None) -> SubmittedJob:
    """Submit a job.

    Args:
        request: the job.
        address: address of the dashboard; see :func:`resolve_address`.
        resources: reserved for the job's own process: ``num_cpus``, ``num_gpus``, ``memory`` in bytes.

    Raises:
        ClusterError: there is no cluster, it refuses the token, or it cannot take the job.
    """
    job = SubmittedJob(request.submission_id, resolve_address(address, os.environ))
    with explained(job.address):
        client = _connect(job.address)
        client.submit_job(
            entrypoint=request.entrypoint,
            submission_id=request.submission_id,
            runtime_env=request.runtime_env,
            **{f"entrypoint_{name}": amount for name, amount in (resources or {}).items()},
        )
    show_summary("job", {"id": job.submission_id, "runs": request.entrypoint})
    for purpose, command in job.commands.items():
        say(f"  {purpose + ':':<11}{command}")
    return job


def follow(job: SubmittedJob, write: Callable[[str], Any] | None = None) -> SubmittedJob:
    """Write the job's log until the job ends (to standard output by default), report the end, and return the job.

    State and log are polled in separate requests, so that a broken or stale connection does not end the log.

    Raises:
        ClusterError: the cluster no longer answers; the job may continue.
    """
    with explained(job.address):
        client = _connect(job.address)
    out, written, failures = write or _to_standard_output, 0, 0
    heard_at = reported_at = time.monotonic()
    while True:
        started_at = time.monotonic()
        try:
            # Read the log after the state: the log of a finished job is then complete.
            info = _answer(client.get_job_info, job.submission_id)
            text = _answer(client.get_job_logs, job.submission_id)
        except (RuntimeError, OSError) as error:
            failures += 1
            if failures > RETRIES:
                reason = "it no longer answers" if isinstance(error, TimeoutError) else first_line(error)
                commands = "\n".join(f"  {command}" for command in job.commands.values())
                raise ClusterError(
                    f"lost job {job.submission_id} at {job.address}: {reason}. The job may go on:\n{commands}"
                ) from error
            time.sleep(POLL_S)
            continue
        failures, now = 0, time.monotonic()
        if len(text) > written:
            out(text[written:])
            written, heard_at = len(text), now
        job = replace(job, status=info.status.value, exit_code=info.driver_exit_code, message=info.message or "")
        if job.status in ("SUCCEEDED", "FAILED", "STOPPED"):
            return _report_end(job)
        if now - max(heard_at, reported_at) >= HEARTBEAT_S:
            reported_at, silent = now, duration(now - heard_at)
            say(f"job {job.submission_id} is {job.status.lower()}, without a line in its log for {silent}")
        # Each answer holds the whole log: poll a long log less often.
        time.sleep(max(POLL_S, 10 * (now - started_at)))


def _answer(ask: Callable[[str], T], submission_id: str) -> T:
    """Return the cluster's answer, requested in its own thread: Ray's client would wait for ever.

    Raises:
        TimeoutError: no answer within :data:`ANSWER_S`.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask(submission_id))
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, name="raydr-job-state", daemon=True).start()
    return answer.result(timeout=ANSWER_S)


def _to_standard_output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def exit_status(job: SubmittedJob) -> int:
    """Return the exit status of the command line: that of the job if it has one.

    >>> [exit_status(SubmittedJob("a", "b", status, code)) for status, code in
    ...  (("SUCCEEDED", 0), ("FAILED", 2), ("FAILED", None), ("FAILED", -9), ("STOPPED", None), ("PENDING", None))]
    [0, 2, 1, 137, 1, 0]
    """
    if job.status in ("SUCCEEDED", "PENDING", "RUNNING"):
        return 0
    if not job.exit_code:
        return 1
    # A process that was killed by a signal has a negative code; shells report 128 + the signal.
    return job.exit_code if job.exit_code > 0 else 128 - job.exit_code


def _report_end(job: SubmittedJob) -> SubmittedJob:
    """Report the end of a job."""
    if job.status == "SUCCEEDED":
        say(f"job {job.submission_id} succeeded")
    elif job.status == "STOPPED":
        warn(f"job {job.submission_id} was stopped; finished parts are kept, and the same submission resumes there")
    else:
        never = f"no exit status: its process never ran. {job.message}".strip()
        warn(f"job {job.submission_id} failed ({never if job.exit_code is None else f'exit status {job.exit_code}'})")
    return job


def _connect(address: str) -> Any:
    """Return a client of the Job API that has reached the cluster."""
    # Send this machine's token, as Ray does when it starts a cluster. Ray reads the mode when it is imported.
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if os.environ.get("RAY_AUTH_TOKEN") or file.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    # Silence Ray's messages on uploads, ends of logs and left-out folders; its warnings on large files stay.
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.working_dir").setLevel(logging.ERROR)
    knock(address)
    url = urlsplit(address)
    here = (url.hostname or "").startswith("127.") or url.hostname in ("localhost", "::1")
    if url.scheme == "http" and not here and os.environ.get("RAY_AUTH_MODE") == "token":
        warn(f"{address} is not encrypted: the token can be read on the way. Use a tunnel (docs/cluster.md) or https")
    return JobSubmissionClient(address)


@contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn errors of a request into a :class:`ClusterError` with advice."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        wrong = "403" in str(error) or "Invalid" in str(error)
        raise ClusterError(
            f"the cluster at {address} asks for a token, and "
            f"{'it is not the token that this machine sends' if wrong else 'this machine sends none'}. Put the "
            "cluster's token into ~/.ray/auth_token (or name its file in RAY_AUTH_TOKEN_PATH) and set "
            "RAY_AUTH_MODE=token here and on the cluster; ray get-auth-token prints a machine's token. "
            "docs/cluster.md"
        ) from error
    except (RuntimeError, ValueError, requests.exceptions.RequestException) as error:
        raise ClusterError(_in_words(address, str(error))) from error
    except OSError as error:
        raise ClusterError(f"the connection to {address} broke: {first_line(error)}. Try again") from error


def _in_words(address: str, error: str) -> str:
    # Take the last line of a traceback; Ray's text ends with a full stop on a separate line.
    last_line = ([line.strip() for line in error.splitlines() if line.strip(" .")] or [error])[-1]
    if "No available agent" in error:
        return (
            f"the cluster at {address} has no agent that could start the job. If two Rays with dashboards run on one "
            "machine, their agents use the same port: start the second with another "
            "--dashboard-agent-listen-port. On a new cluster, wait a moment and try again"
        )
    if "exceeds the maximum" in error:
        return (
            f"the working directory is too large to be sent: {last_line}. List what the job does not need in "
            ".rayignore (the syntax of .gitignore), or give another --working-dir"
        )
    if "404" in error or "Expecting value" in error:
        return f"something answers at {address}, but not Ray's dashboard. The usual port is 8265"
    return f"the cluster at {address} refused the request: {last_line}"
