"""Ctrl-C and SIGTERM end a command wherever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from raydr.verbs.exit_status import exit_status

#: A signal comes while garbage is collected, where Python ignores whatever is raised; then there is work without end.
IN_A_DESTRUCTOR = """
import os, sys
from raydr.verbs.exit_status import exit_status

class Connection:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(1000):
            pass

with exit_status("command"):
    Connection()
    print("begun", flush=True)
    while True:
        pass
"""


@pytest.mark.parametrize(
    ("number", "status", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_that_falls_into_a_destructor_ends_the_command(number: int, status: int, message: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_DESTRUCTOR, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "begun\n", "the signal was not ignored where it came"
    assert ended.returncode == status
    assert ended.stderr.startswith(f"{message}: finished parts are kept")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: ..."),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_memory_that_runs_out_ends_the_command_with_a_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"), exit_status("command"):
        raise error
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith("error: out of memory (")
    assert "train.batch_size" in shown
    with pytest.raises(RuntimeError, match="a bug"), exit_status("command"):
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="https://bucket"),
        ClientError({"Error": {"Code": "ExpiredToken", "Message": "the token has expired"}}, "GetObject"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_store_that_fails_in_the_middle_ends_the_command_with_a_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"), exit_status("command"):
        raise error
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith("error: a store or server failed (")
    assert "run the same command again" in shown
    with pytest.raises(BrokenPipeError), exit_status("command"):
        raise BrokenPipeError


def test_a_character_that_the_encoding_of_the_output_lacks_does_not_end_a_command() -> None:
    code = "from raydr.verbs.exit_status import exit_status\nwith exit_status('command'): print('t\\u00f8pic')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "t\\xf8pic\n"), ended.stderr
