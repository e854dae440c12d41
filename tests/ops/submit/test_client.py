"""Following a job whose connection breaks, and what is said when a cluster does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from raydr.errors import ClusterError, ConfigError
from raydr.ops.submit import client
from raydr.ops.submit.client import SubmittedJob, explained, follow, resolve_address

JOB = SubmittedJob("j1", "http://127.0.0.1:8265")
LOG = ["one\n", "two\n", "three\n", "four\n"]


class FakeClient:
    """A job whose log breaks off after so many chunks, once for each number."""

    def __init__(self, breaks: list[int], status: str = "SUCCEEDED", code: int | None = 0) -> None:
        self.breaks = list(breaks)
        self.info = SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code, message="why")

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        upto = self.breaks.pop(0) if self.breaks else None
        for chunk in LOG[:upto]:
            yield chunk
        if upto is not None:
            raise RuntimeError("WebSocket connection closed unexpectedly")

    def get_job_info(self, submission_id: str) -> Any:
        return self.info


class QuietClient(FakeClient):
    """A job whose log is as ``tail`` says, while its state is first ``RUNNING`` for so many questions."""

    def __init__(self, running: int, tail: str) -> None:
        super().__init__([])
        self.running, self.tail, self.opened = running, tail, 0

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        self.opened += 1
        for chunk in LOG[: min(self.opened, 3)]:
            yield chunk
        if self.tail == "hangs":
            await asyncio.Event().wait()

    def get_job_info(self, submission_id: str) -> Any:
        self.running -= 1
        if self.running >= 0:
            return SimpleNamespace(status=SimpleNamespace(value="RUNNING"), driver_exit_code=None, message="")
        return self.info

    def get_job_logs(self, submission_id: str) -> str:
        return "".join(LOG)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"POLL_S": 0.0, "LOOK_S": 10.0, "HEARTBEAT_S": 0.05, "RECONNECT_S": 0.1}.items():
        monkeypatch.setattr(client, name, seconds)


def connect_to(monkeypatch: pytest.MonkeyPatch, fake: FakeClient) -> None:
    monkeypatch.setattr(client, "_connect", lambda address: fake)


def test_a_broken_log_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_to(monkeypatch, FakeClient([1, 3, 2]))
    written: list[str] = []
    ended = follow(JOB, written.append)
    assert "".join(written) == "".join(LOG)
    assert (ended.status, ended.exit_code) == ("SUCCEEDED", 0)


def test_a_log_that_stays_away_is_given_up_with_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_to(monkeypatch, FakeClient([2] * 50))
    written: list[str] = []
    with pytest.raises(ClusterError, match="ray job stop j1 --address http://127.0.0.1:8265"):
        follow(JOB, written.append)
    assert "".join(written) == "one\ntwo\n"


def test_a_log_that_ends_while_the_job_runs_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends it where the agent of the job's node is started again, for example; nothing was written after that."""
    quiet = QuietClient(running=2, tail="ends")
    connect_to(monkeypatch, quiet)
    written: list[str] = []
    ended = follow(JOB, written.append)
    assert "".join(written) == "".join(LOG[:3])
    assert (quiet.opened, ended.status) == (3, "SUCCEEDED")


def test_a_connection_that_leads_nowhere_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open, and silent for ever: the state says that the job goes on, then that it is over; the log is whole."""
    monkeypatch.setattr(client, "LOOK_S", 0.01)
    quiet = QuietClient(running=40, tail="hangs")
    connect_to(monkeypatch, quiet)
    written: list[str] = []
    ended = follow(JOB, written.append)
    assert "".join(written) == "".join(LOG)
    assert (ended.status, ended.exit_code) == ("SUCCEEDED", 0)
    assert quiet.opened > 1
    assert "job j1 is running, without a word for" in capsys.readouterr().err


def test_a_cluster_that_takes_questions_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_S", 0.01)
    quiet = QuietClient(running=0, tail="hangs")
    connect_to(monkeypatch, quiet)
    monkeypatch.setattr(client, "ANSWER_S", 0.02)
    monkeypatch.setattr(quiet, "get_job_info", lambda submission_id: threading.Event().wait())
    with pytest.raises(ClusterError, match="lost job j1 at http://127.0.0.1:8265: it no longer answers"):
        follow(JOB, lambda text: None)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ("FAILED", 2, "job j1 failed (exit status 2)"),
        ("FAILED", None, "its process never ran"),
        ("STOPPED", None, "the same submission goes on"),
        ("SUCCEEDED", 0, "job j1 succeeded"),
    ],
)
def test_the_end_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int | None, said: str
) -> None:
    connect_to(monkeypatch, FakeClient([], status, code))
    follow(JOB, lambda text: None)
    assert said in capsys.readouterr().err


def test_an_address_that_ray_would_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="unset RAY_API_SERVER_ADDRESS"):
        resolve_address("http://a:1", {"RAY_API_SERVER_ADDRESS": "http://b:1"})
    assert resolve_address("http://a:1", {"RAY_ADDRESS": "http://a:1/"}) == "http://a:1"


@pytest.mark.parametrize("address", ["http://TOKEN@head:8265", "http://head:8265/#token=TOKEN"])
def test_an_address_with_a_token_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="--address is a URL that holds credentials") as refused:
        resolve_address(address, {})
    assert "TOKEN" not in str(refused.value)


def test_nothing_at_the_address_is_told_soon() -> None:
    with pytest.raises(ClusterError, match="nothing answers at http://127.0.0.1:9"):
        client._connect("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("status code 500: No available agent to submit job"), "--dashboard-agent-listen-port"),
        (RuntimeError("status code 500: Traceback\nValueError: Package exceeds the maximum size"), r"\.rayignore"),
        (RuntimeError("Version check returned 404. Jobs API"), "not Ray's dashboard"),
        (RuntimeError("status code 400: Traceback\nValueError: Job with id x already exists\n."), "already exists$"),
        (ConnectionResetError("reset by peer"), "broke: reset by peer"),
    ],
)
def test_what_ray_says_is_put_into_words(error: Exception, said: str) -> None:
    with pytest.raises(ClusterError, match=said), explained("http://head:8265"):
        raise error
