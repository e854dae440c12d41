"""Following a job whose connection breaks, and what is said when a cluster does not answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from raydr.errors import ClusterError, ConfigError
from raydr.ops.submit import client
from raydr.ops.submit.client import SubmittedJob, explained, follow, resolve_address

JOB = SubmittedJob("j1", "http://127.0.0.1:8265")
LOG = ["one\n", "two\n", "three\n", "four\n"]


class FakeClient:
    """A job whose log has a line more at each question, and whose cluster fails as it is told to.

    Args:
        failures: what the next questions meet, one after the other; None for an answer.
        running: questions until the job is over.
    """

    def __init__(
        self, *failures: Exception | None, running: int = 4, status: str = "SUCCEEDED", code: int | None = 0
    ) -> None:
        self.failures, self.running, self.num_lines = list(failures), running, 0
        self.info = SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code, message="why")

    def get_job_info(self, submission_id: str) -> Any:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.running -= 1
        if self.running > 0:
            return SimpleNamespace(status=SimpleNamespace(value="RUNNING"), driver_exit_code=None, message="")
        return self.info

    def get_job_logs(self, submission_id: str) -> str:
        self.num_lines += 1
        return "".join(LOG if self.running <= 0 else LOG[: self.num_lines])


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"POLL_S": 0.0, "HEARTBEAT_S": 0.05}.items():
        monkeypatch.setattr(client, name, seconds)


def connect_to(monkeypatch: pytest.MonkeyPatch, fake: FakeClient) -> None:
    monkeypatch.setattr(client, "_connect", lambda address: fake)


BROKEN = ConnectionResetError("reset by peer")


@pytest.mark.parametrize(
    "failures",
    [[], [None, BROKEN, None, BROKEN, BROKEN], [RuntimeError("502")] * 5, [BROKEN] * 5 + [None, *[BROKEN] * 5]],
)
def test_the_log_is_written_once_whatever_breaks(monkeypatch: pytest.MonkeyPatch, failures: list[Exception]) -> None:
    connect_to(monkeypatch, FakeClient(*failures))
    written: list[str] = []
    ended = follow(JOB, written.append)
    assert "".join(written) == "".join(LOG)
    assert (ended.status, ended.exit_code) == ("SUCCEEDED", 0)


def test_a_cluster_that_stays_away_is_given_up_with_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_to(monkeypatch, FakeClient(None, None, *[BROKEN] * 50))
    written: list[str] = []
    with pytest.raises(ClusterError, match="(?s)reset by peer.*ray job stop j1 --address http://127.0.0.1:8265"):
        follow(JOB, written.append)
    assert "".join(written) == "one\ntwo\n"


def test_a_silent_job_is_said_to_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_S", 0.0)
    connect_to(monkeypatch, FakeClient(running=3))
    follow(JOB, lambda text: None)
    assert "job j1 is running, without a line in its log for" in capsys.readouterr().err


@pytest.mark.parametrize("question", ["get_job_info", "get_job_logs"])
def test_a_connection_that_leads_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    """It takes questions and never answers; the next ones are asked by other connections."""
    monkeypatch.setattr(client, "ANSWER_S", 0.02)
    fake, asked = FakeClient(), list[str]()
    answer = getattr(fake, question)

    def hang(submission_id: str) -> Any:
        asked.append(submission_id)
        return threading.Event().wait() if len(asked) <= num_hanging else answer(submission_id)

    monkeypatch.setattr(fake, question, hang)
    connect_to(monkeypatch, fake)
    written: list[str] = []
    num_hanging = 3
    assert follow(JOB, written.append).status == "SUCCEEDED"
    assert "".join(written) == "".join(LOG)
    asked.clear()
    num_hanging = 1000
    with pytest.raises(ClusterError, match="lost job j1 at http://127.0.0.1:8265: it no longer answers"):
        follow(JOB, lambda text: None)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("FAILED", 2, "job j1 failed (exit status 2)"),
        ("FAILED", None, "its process never ran"),
        ("STOPPED", None, "the same submission resumes"),
        ("SUCCEEDED", 0, "job j1 succeeded"),
    ],
)
def test_the_end_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int | None, message: str
) -> None:
    connect_to(monkeypatch, FakeClient(status=status, code=code))
    follow(JOB, lambda text: None)
    assert message in capsys.readouterr().err


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
    ("error", "message"),
    [
        (RuntimeError("status code 500: No available agent to submit job"), "--dashboard-agent-listen-port"),
        (RuntimeError("status code 500: Traceback\nValueError: Package exceeds the maximum size"), r"\.rayignore"),
        (RuntimeError("Version check returned 404. Jobs API"), "not Ray's dashboard"),
        (RuntimeError("status code 400: Traceback\nValueError: Job with id x already exists\n."), "already exists$"),
        (ConnectionResetError("reset by peer"), "broke: reset by peer"),
    ],
)
def test_what_ray_says_is_put_into_words(error: Exception, message: str) -> None:
    with pytest.raises(ClusterError, match=message), explained("http://head:8265"):
        raise error
