"""The address of a cluster: what does not answer, or is none, is told at once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

import pytest
import ray

from raydr.distributed.cluster import (
    MAX_STARTS,
    TIME_TO_START,
    RayConfig,
    _begin,
    _start_local,
    connected,
    knock,
    ray_session,
    start_ray,
    works_for_ray,
)
from raydr.errors import ClusterError


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "http://127.0.0.1:{port}", "ray://localhost:{port}"])
def test_what_listens_is_let_in_and_what_does_not_is_told(address: str) -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        here = address.format(port=ours.getsockname()[1])
        with pytest.raises(ClusterError, match="nothing answers at"):
            knock(here)
        ours.listen()
        knock(here)


@pytest.mark.parametrize("address", ["auto", "local", "http://head"])
def test_other_forms_are_left_to_ray(address: str) -> None:
    knock(address)


def test_a_wrong_address_is_told() -> None:
    with pytest.raises(ClusterError, match="write host:port"):
        knock("head:gcs")


def test_a_busy_machine_has_longer_than_rays_own_30_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried with a raylet that sleeps for 45 s: by its defaults Ray gives it up."""
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", {"RAY_raylet_start_wait_time_s": "500"})
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: environment.update(os.environ))
    with ray_session(RayConfig(num_cpus=1)):
        start_ray()
    assert set(TIME_TO_START) <= set(environment)
    # As somebody has set it.
    assert environment["RAY_raylet_start_wait_time_s"] == "500"


def test_the_folder_of_a_local_ray_may_lie_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, Any] = {}
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **settings: used.update(settings))
    with ray_session(RayConfig(num_cpus=1, temp_dir="~/ray")):
        start_ray()
    assert used["_temp_dir"] == "/home/ada/ray"


def test_connecting_to_nothing_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with (
        pytest.raises(ClusterError, match="nothing answers at 127.0.0.1:9"),
        connected(RayConfig(address="127.0.0.1:9")),
    ):
        pytest.fail("connected")


#: Starts Ray as a step does, and uses it when that is over.
STARTED_BY_A_STEP = """
import sys, threading
from raydr.distributed.cluster import RayConfig, ray_session, start_ray

with ray_session(RayConfig(num_cpus=1, object_store_gib=0.1, temp_dir=sys.argv[1])):
    step = threading.Thread(target=start_ray)
    step.start()
    step.join()
    import ray

    for _ in range(2):
        print(ray.get(ray.remote(lambda: "alive").remote()))
"""


CANNOT_START = """
import json, sys
from ray.experimental.internal_kv import _internal_kv_initialized
from raydr.distributed.cluster import RayConfig, connected
from raydr.errors import ClusterError

try:
    with connected(RayConfig(num_cpus=1, **json.loads(sys.argv[1]))):
        print("connected")
except ClusterError as error:
    print(error)
print(_internal_kv_initialized())
"""


@pytest.mark.parametrize("num_slow", [0, 1, MAX_STARTS - 1, MAX_STARTS])
def test_a_ray_that_is_slow_to_start_is_started_again_and_reported_in_the_end(num_slow: int) -> None:
    """Seen on a busy machine, where the first attempt ended a search."""
    threads = []

    def start() -> None:
        threads.append(threading.current_thread())
        if len(threads) <= num_slow:
            raise Exception("The current node timed out during startup. This could happen because ...")

    if num_slow < MAX_STARTS:
        _start_local(start)
    else:
        with pytest.raises(ClusterError, match="attempts of half a minute: .* run the same command again"):
            _start_local(start)
    # The end of a thread stops the processes that it started.
    assert [thread.is_alive() for thread in threads] == [False] * num_slow + [True] * (num_slow < MAX_STARTS)


@pytest.mark.ray
@pytest.mark.parametrize(
    "wrong", [{"temp_dir": f"/tmp/{'x' * 100}"}, {"object_store_gib": 0.01}], ids=lambda wrong: next(iter(wrong))
)
def test_a_local_ray_that_cannot_start_says_which_setting_helps_and_leaves_nothing(wrong: dict[str, Any]) -> None:
    """A long TMPDIR ended in Ray's traceback; the next trainer ended a process that had caught the error."""
    process = subprocess.run(
        [sys.executable, "-c", CANNOT_START, json.dumps(wrong)], capture_output=True, text=True, check=False
    )
    assert re.fullmatch(
        r"Ray cannot start here: .*; set ray\.temp_dir .* ray\.object_store_gib\nFalse\n", process.stdout
    ), process.stdout + process.stderr


@pytest.mark.ray
def test_a_ray_that_a_step_has_started_outlives_it_and_starts_silently() -> None:
    with tempfile.TemporaryDirectory(prefix="rc-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", STARTED_BY_A_STEP, folder]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["alive", "alive"], process.stderr
    # Not even Ray's core says a word.
    assert process.stderr == ""


def test_sigterm_stays_with_who_had_it_before_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own answer to it leaves in the middle of whatever is done, with tracebacks of its own."""
    of_ray = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    def mine(number: int, frame: object) -> None:
        raise AssertionError

    try:
        signal.signal(signal.SIGTERM, mine)
        _begin(lambda: signal.signal(signal.SIGTERM, lambda *_: None))
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, of_ray)


@pytest.mark.ray
def test_who_works_for_a_ray_and_who_lets_it_work(ray_local: None) -> None:
    """A worker takes no GPU that it was not given."""
    assert not works_for_ray()
    assert ray.get(ray.remote(works_for_ray).remote())
