"""Ray: the connection to a cluster or a local Ray, with capacity, labels, logs and memory."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from raydr.component import Config
from raydr.errors import ClusterError, ConfigError, first_line

#: Seconds to wait for an answer at a cluster's address.
KNOCK_TIMEOUT_S = 10.0
#: Seconds that Ray waits for its own processes to start; a busy machine takes longer than Ray's defaults of 30 s.
TIME_TO_START = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "120",
}
#: Environment variable of a cluster's nodes with the largest size of the cluster.
CAPACITY = "RAYDR_CAPACITY"
#: Prefix of the names of threads that run steps of a pipeline.
STEP_THREAD = "raydr-step"
#: Attempts to start a local Ray, which waits half a minute for its processes each time.
MAX_STARTS = 4


class RayConfig(Config):
    """Connection to Ray. Inside a job or with an address, the resources of a local Ray are ignored."""

    address: str = ""
    """Address of a running cluster; empty: ``RAY_ADDRESS`` of the environment, else a local Ray."""

    capacity: dict[Literal["CPU", "GPU"], Annotated[float, Field(ge=0)]] | None = None
    """Largest size of a cluster that adds nodes on demand, for example ``{CPU: 64, GPU: 12}``: sums over the groups
    that ``ray.node_labels`` admits. No stage requests more, and ``raydr plan`` computes with it on any machine. If
    null, the variable ``RAYDR_CAPACITY`` of the cluster's nodes counts (``CPU=64,GPU=12``), which the shipped cluster
    files set; else the size when a stage begins."""

    node_labels: dict[str, str] = {"group": "!train"}
    """Labels of the nodes for all work but training, in Ray's notation. The default leaves machines of several GPUs to
    ``train.node_labels: {group: train}``: Ray would start them for encoders before cheaper machines. It admits nodes
    without such a label. Any node if empty."""

    num_cpus: int | None = Field(default=None, ge=1)
    """CPUs of the local Ray; the machine's if null."""

    num_gpus: int | None = Field(default=None, ge=0)
    """GPUs of the local Ray; the machine's if null."""

    object_store_gib: float = Field(default=1.0, gt=0)
    """Shared memory in GiB for objects of the local Ray."""

    in_process_rows: int = Field(default=20_000, ge=0)
    """Maximum of texts that a stage reads with a model in this process, without a local Ray; 5 times as many rows
    without a model. On the machine's only GPU 10 times as many with a model, and 4 times as many without. With 0 all
    stages run on Ray."""

    temp_dir: str = ""
    """Folder for sessions and logs of the local Ray; a short path, since sockets live in it."""


class _Session:
    """Settings of the Ray that this process uses."""

    config: RayConfig | None = None
    dashboard = False
    lock = threading.Lock()
    starter: ThreadPoolExecutor | None = None  # Thread that started the local Ray.


@contextmanager
def ray_session(config: RayConfig, dashboard: bool = False) -> Iterator[None]:
    """Configure Ray for the block; the first :func:`start_ray` starts Ray, and the end of the block shuts it down.

    An existing connection to Ray is used and kept.

    Args:
        config: address of Ray, or resources of a local Ray.
        dashboard: whether a local Ray has a dashboard. Without it Ray Train cannot clean up after a group whose parent
            was killed, as a search kills trials.
    """
    before = _Session.config, _Session.dashboard
    owner = not is_connected()
    _Session.config, _Session.dashboard = config, dashboard
    bound_memory()
    try:
        yield
    finally:
        _Session.config, _Session.dashboard = before
        # After Ctrl-C, threads may still run steps, and Ray's core crashes if it is shut down under them.
        if owner and is_connected() and not step_threads():
            import ray

            ray.shutdown()


@contextmanager
def connected(config: RayConfig, dashboard: bool = False) -> Iterator[None]:
    """Open a :func:`ray_session` and start its Ray at once."""
    with ray_session(config, dashboard):
        start_ray()
        yield


def start_ray() -> None:
    """Connect to the Ray of the session, or start it on this machine, unless it is connected."""
    # The import of Ray reads some of these.
    for name, time in TIME_TO_START.items():
        os.environ.setdefault(name, time)
    import ray

    with _Session.lock:
        if ray.is_initialized():
            return
        config = _Session.config
        if config is None:
            raise ClusterError(
                "Ray is used outside of a session: wrap the call in raydr.distributed.cluster.ray_session"
            )
        quiet_ray_logs()
        if address := address_of(config):
            knock(address)
            _begin(lambda: ray.init(address=config.address or None, logging_level="ERROR", log_to_driver=False))
            return
        temp_dir = Path(config.temp_dir or f"{tempfile.gettempdir()}/raydr-ray-{os.getuid()}").expanduser().absolute()
        start = partial(
            ray.init,
            address="local",
            num_cpus=config.num_cpus or os.cpu_count(),
            num_gpus=config.num_gpus,
            object_store_memory=int(config.object_store_gib * 2**30),
            include_dashboard=_Session.dashboard,
            logging_level="ERROR",
            # Output of workers goes to Ray's log folder; raydr's stages report the important facts themselves.
            log_to_driver=False,
            _temp_dir=str(temp_dir),
        )
        _start_local(start)


def _start_local(start: Callable[[], object]) -> None:
    """Start Ray's processes from a thread of their own, several times if they are too slow.

    Linux kills the processes when the thread ends that started them: a pipeline's step must not be that thread, and
    the end of the thread removes what an attempt has left.

    Raises:
        ClusterError: the processes were too slow each time, or Ray cannot use its folder or settings.
    """
    for _ in range(MAX_STARTS):
        starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raydr-ray")
        try:
            starter.submit(_begin, start).result()
        except Exception as error:
            starter.shutdown()
            if isinstance(error, OSError | ValueError):
                remedy = "set ray.temp_dir to a short path that can be written, or another ray.object_store_gib"
                raise ClusterError(f"Ray cannot start here: {first_line(error).rstrip('.')}; {remedy}") from error
            # Ray has no class for it, and no setting for the half minute.
            if "timed out during startup" not in str(error):
                raise
            slow = error
        else:
            _Session.starter = starter
            return
    raise ClusterError(
        f"Ray did not start on this machine in {MAX_STARTS} attempts of half a minute: the machine is very busy, or "
        "short of memory. Finished parts are kept; run the same command again when it is less busy"
    ) from slow


def _begin(start: Callable[[], object]) -> None:
    """Start Ray or join it, and keep this process's handler of SIGTERM."""
    import ray

    ended_by = signal.getsignal(signal.SIGTERM)
    try:
        with _without_level_line():
            start()
    finally:
        if not ray.is_initialized():
            ray.shutdown()  # The client of a server that is gone would end this process later.
    if callable(ended_by) and threading.current_thread() is threading.main_thread():
        # Ray has replaced it by its own handler, which ends the process at any point.
        signal.signal(signal.SIGTERM, ended_by)


def local_session() -> RayConfig | None:
    """Return the session's settings if raydr starts its Ray on this machine; else None."""
    config = _Session.config
    return config if config is not None and not address_of(config) else None


def stated_capacity() -> dict[Literal["CPU", "GPU"], float] | None:
    """Return the largest size of the session's cluster: ``ray.capacity``, else ``RAYDR_CAPACITY`` of the environment.

    None if neither is set, and for a Ray on this machine, which does not grow.

    Raises:
        ConfigError: the variable has no valid amounts.
    """
    config = _Session.config
    if config is None or not address_of(config):
        return None
    return config.capacity if config.capacity is not None else read_capacity(os.environ.get(CAPACITY, ""))


def read_capacity(text: str) -> dict[Literal["CPU", "GPU"], float] | None:
    """Parse a text such as ``CPU=64,GPU=12``; None if it is empty.

    Raises:
        ConfigError: a name is unknown, or an amount is no number from 0.

    >>> read_capacity("CPU=64,GPU=12")
    {'CPU': 64.0, 'GPU': 12.0}
    """
    amounts = dict(item.partition("=")[::2] for item in text.split(","))
    try:
        return RayConfig.model_validate({"capacity": amounts}).capacity if text else None
    except ValueError as error:
        raise ConfigError(
            f"{CAPACITY} is {text!r}: expected CPUs and GPUs of the largest cluster, such as CPU=64,GPU=12"
        ) from error


def stage_labels() -> dict[str, str]:
    """Return the labels of the nodes for all work but training: ``ray.node_labels``."""
    return dict((_Session.config or RayConfig()).node_labels)


def address_of(config: RayConfig) -> str:
    """Return the address of the running cluster that is used; empty for a Ray on this machine."""
    return config.address or os.environ.get("RAY_ADDRESS", "")


def is_connected() -> bool:
    """Return whether this process is connected to Ray."""
    ray = sys.modules.get("ray")  # An import takes a second; without one there is no connection.
    return ray is not None and bool(ray.is_initialized())


def works_for_ray() -> bool:
    """Return whether this process is a worker of Ray, for example of a trial or of a job's task."""
    if not is_connected():
        return False
    import ray

    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def step_threads() -> list[threading.Thread]:
    """Return the running threads of a pipeline's steps."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(STEP_THREAD)]


def knock(address: str) -> None:
    """Check that a cluster answers at its address; Ray itself would try for ten minutes.

    Args:
        address: ``host:port`` or a URL; other forms, such as ``auto``, are not checked.

    Raises:
        ClusterError: nothing answers.
    """
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        if not url.hostname or not url.port:
            return
        with socket.create_connection((url.hostname, url.port), timeout=KNOCK_TIMEOUT_S):
            pass
    except ValueError as error:
        raise ClusterError(
            f"{address} is no address of a cluster ({error}): write host:port, such as 10.0.0.5:6379"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address} ({error.strerror or error}). Is the cluster up, and can it be reached from "
            "here? docs/cluster.md says how one is started and how a tunnel to it is opened"
        ) from error


def quiet_ray_logs() -> None:
    """Keep Ray's own messages out of raydr's output; warnings and errors stay."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray Data makes the core worker log an error about its own actors; real errors reach raydr as exceptions.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    for name in ("ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def _without_level_line() -> Iterator[None]:
    """Remove a line from standard error that Ray's core prints before it obeys ``RAY_BACKEND_LOG_LEVEL``."""
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            kept.seek(0)
            for line in kept:
                if b"Set ray log level from environment variable" not in line:
                    os.write(2, line)


def bound_memory() -> None:
    """Limit the caches of compiled kernels before PyTorch's first matrix product; workers of a local Ray inherit it."""
    # oneDNN keeps a kernel for each shape of a matrix product. Batches of changing lengths fill its 1,024 places with
    # hundreds of MiB, and are not slower with few places (docs/performance.md).
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def give_back_memory() -> bool:
    """Return freed memory to the system, and whether the C library can do so (glibc).

    glibc keeps it per thread, so that each stage of a process would add its own peak. PyTorch keeps it on a GPU, which
    a worker of Ray may need next.
    """
    # Another thread may be importing it.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if getattr(cuda, "is_initialized", bool)():
        cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None
