"""A Ray head in processes of its own, stopped by its own id: other Rays of the machine are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from patience import wait_until

from raydr.distributed.cluster import TIME_TO_START

#: Seconds that Ray has for ending in order.
GRACE_S = 10.0


def inherited() -> dict[str, str]:
    """Variables of this process; of Ray's only those that say how long it waits, and that its workers are not nice.

    Beside tests that compute a nice worker hardly comes up.
    """
    of_ray = (*TIME_TO_START, "RAY_worker_niceness")
    return {name: value for name, value in os.environ.items() if name in of_ray or not name.startswith("RAY_")}


def environment(token_file: Path, **more: str) -> dict[str, str]:
    """Variables of the head and of everyone who talks to it: one token, and this interpreter as ``python``."""
    kept = inherited()
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)}
    own = {"PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    return kept | token | own | more


@contextmanager
def ray_head(arguments: list[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``ray start --head --block`` with these arguments, for the duration of the block."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    with open(log, "wb") as output:
        head = subprocess.Popen(
            [*command, *arguments], env=dict(env), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield head
        finally:
            head.send_signal(signal.SIGTERM)
            try:
                head.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                # Ray's processes belong to the head's group; workers end when their raylet does.
                os.killpg(head.pid, signal.SIGKILL)
                head.wait()


def wait_for(what: str, ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it is true.

    Raises:
        AssertionError: the process has ended, with the end of the log; or it never is.
    """

    def looked() -> bool:
        assert process.poll() is None, f"the process ended before {what}: {log.read_text()[-2000:]}"
        return ready()

    wait_until(looked, what)
