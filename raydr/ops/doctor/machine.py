"""GPUs and their driver, memory that Ray shares between processes, disks, open files."""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raydr.config.run import RunConfig
from raydr.ops.doctor.finding import Finding

_GIB = 2**30
#: PyTorch's wheels are built for CUDA 13, which needs this driver.
OLDEST_DRIVER = 580
#: Free space below which a warning comes: artefacts of a small run, Ray's logs and spilled objects.
LITTLE_DISK_GIB = 10.0
#: Ray holds a socket or two for every worker and connection.
FEW_OPEN_FILES = 8192

#: Where credentials are looked for; only their names are ever shown.
CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    *("MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver reports it."""

    name: str
    driver: str
    memory_gib: float | None


def find_gpus() -> list[Gpu]:
    """The GPUs that NVIDIA's driver reports; none without a driver."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(asked.stdout)


def parse_gpus(listed: str) -> list[Gpu]:
    """
    >>> parse_gpus("NVIDIA A10G, 580.95.05, 23028\\n")
    [Gpu(name='NVIDIA A10G', driver='580.95.05', memory_gib=22.48828125)]
    >>> parse_gpus("NVIDIA GB10, 580.95.05, [N/A]\\n")[0].memory_gib is None
    True
    """
    rows = [line.split(", ") for line in listed.strip().splitlines()]
    return [Gpu(name, driver, _gib(memory)) for name, driver, memory in rows]


def _gib(mebibytes: str) -> float | None:
    """Some devices and rights give no number."""
    return float(mebibytes) / 1024 if mebibytes.replace(".", "", 1).isdigit() else None


def check_gpus(gpus: list[Gpu], torch_sees: int, torch_cuda: str | None, wanted: bool) -> Finding:
    """The driver's GPUs against PyTorch's.

    Args:
        gpus: what the driver reports.
        torch_sees: GPUs that PyTorch can use.
        torch_cuda: the CUDA that PyTorch was built for; None for a CPU build.
        wanted: whether the config asks this machine for GPUs.
    """
    if not gpus:
        if wanted:
            return Finding.broken(
                "gpu",
                "none, but the config asks for GPUs",
                "install NVIDIA's driver, give the address of a cluster with GPUs in ray.address, or set "
                "train.use_gpu: false, encode.gpus_per_actor: 0 and device: cpu",
            )
        return Finding.ok("gpu", "none: everything runs on the CPU")
    memory = gpus[0].memory_gib
    size = "" if memory is None else f" ({memory:.0f} GiB)"
    shown = f"{len(gpus)} x {gpus[0].name}{size}, driver {gpus[0].driver}"
    if torch_cuda is None:
        return Finding.broken(
            "gpu", f"{shown}, but PyTorch is a CPU build", "pip install torch from the default index, without +cpu"
        )
    if torch_sees < len(gpus):
        old = int(gpus[0].driver.partition(".")[0]) < OLDEST_DRIVER
        advice = (
            f"install NVIDIA driver {OLDEST_DRIVER} or newer" if old else "check CUDA_VISIBLE_DEVICES and the container"
        )
        # Some of them, as on a shared machine: what it sees works.
        tell = Finding.warning if torch_sees else Finding.broken
        return tell("gpu", f"{shown}; PyTorch (CUDA {torch_cuda}) sees {torch_sees}", advice)
    return Finding.ok("gpu", f"{shown}, PyTorch for CUDA {torch_cuda}")


def torch_gpus() -> tuple[int, str | None]:
    """How many GPUs PyTorch can use, and the CUDA it was built for."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda


def check_shared_memory(object_store_gib: float, folder: str = "/dev/shm") -> Finding:
    """Ray keeps objects in shared memory; where it does not fit they go to a disk."""
    if not Path(folder).is_dir():
        return Finding.ok("shared memory", f"this system has no {folder}")
    size = shutil.disk_usage(folder)
    shown = f"{folder}: {size.free / _GIB:.1f} of {size.total / _GIB:.1f} GiB free"
    if size.free < object_store_gib * _GIB:
        return Finding.warning(
            "shared memory",
            f"{shown}, ray.object_store_gib is {object_store_gib:g}",
            "Ray will use a disk instead, slowly: start the container with --shm-size, or lower ray.object_store_gib",
        )
    return Finding.ok("shared memory", shown)


def check_disk(what: str, folder: str) -> Finding:
    """Free space where something is written; the nearest folder above it that is there counts."""
    there = next(one for one in (Path(folder).absolute(), *Path(folder).absolute().parents) if one.is_dir())
    free = shutil.disk_usage(there).free / _GIB
    shown = f"{free:.1f} GiB free at {there}"
    if free < LITTLE_DISK_GIB:
        return Finding.warning(
            what,
            shown,
            "21 million vectors of 768 float16 take 32 GB twice (vectors and index): free space, or move it",
        )
    return Finding.ok(what, shown)


def check_disks(config: RunConfig | None) -> list[Finding]:
    """Where Ray writes its logs and spilled objects, and the working folder if it is local."""
    temp_dir = (config.ray.temp_dir if config is not None else "") or tempfile.gettempdir()
    findings = [check_disk("disk for Ray", temp_dir)]
    if config is not None and "://" not in config.workdir:
        findings.append(check_disk("disk for artefacts", config.workdir))
    return findings


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEW_OPEN_FILES:
        return Finding.warning(
            "open files",
            f"at most {soft}",
            f"ulimit -n {min(65536, hard) if hard > 0 else 65536} before Ray is started",
        )
    return Finding.ok("open files", f"at most {soft}")


def check_credentials(environ: Mapping[str, str]) -> Finding:
    """Which of the usual variables are set: names only."""
    there = [name for name in CREDENTIALS if environ.get(name)]
    return Finding.ok(
        "credentials", f"set: {', '.join(there)} (values not shown)" if there else "none of the usual ones"
    )
