"""This machine: Python, packages, FAISS, GPUs and their driver, shared memory, disks, open files."""

from __future__ import annotations

import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from raydr.config.run import RunConfig
from raydr.distributed.cluster import RayConfig, address_of
from raydr.indexing import faiss_backend as backend
from raydr.pipeline.session import asks_for_gpus
from raydr.store.identity import flatten

GIB = 2**30
#: Shown by name; the other requirements only if they do not fit.
MAIN = ("ray", "torch", "transformers", "mlflow")
OLDEST_PYTHON = (3, 11)
#: PyTorch's wheels are built for CUDA 13, which needs this driver.
OLDEST_DRIVER = 580
#: Free space below which a warning comes: artefacts of a small run, Ray's logs and spilled objects.
LITTLE_DISK_GIB = 10.0
#: Ray holds a socket or two for every worker and connection.
FEW_OPEN_FILES = 8192

#: ``warning``: a run works, slower or not as asked; ``broken``: it will fail.
State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do if it is not ok. Holds no secrets."""

    check: str
    state: State
    found: str
    advice: str = ""


def check_python(running: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    shown = ".".join(map(str, running))
    if running < OLDEST_PYTHON:
        return Finding("python", "broken", shown, "raydr needs Python 3.11 or newer: make an environment with it")
    return Finding("python", "ok", f"{shown} ({platform.platform(terse=True)})")


def installed(name: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def check_packages(
    requirements: list[str] | None = None, find: Callable[[str], str] = installed, main: Sequence[str] = MAIN
) -> list[Finding]:
    """Installed versions against what raydr asks for.

    Args:
        requirements: in pip's notation; raydr's own, without its extras, by default.
        find: gives the version of a package.
        main: packages that are shown in any case.
    """
    if requirements is None and not installed("raydr"):
        shown = "raydr runs from a folder and is not installed: what it needs cannot be compared"
        advice = "pip install --constraint constraints.txt '.[cpu]' in the repository, or [gpu]"
        return [Finding("packages", "warning", shown, advice)]
    findings = []
    for needed in map(Requirement, (requires("raydr") or []) if requirements is None else requirements):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        version = find(needed.name)
        # A local part (+cu130) says how it was built, not which version it is.
        fits = bool(version) and needed.specifier.contains(re.sub(r"\+.*$", "", version), prereleases=True)
        if not fits:
            shown = f"{version}, raydr needs {needed.specifier}" if version else "not installed"
            command = f"pip install --constraint constraints.txt '{needed.name}{needed.specifier}'"
            findings.append(Finding(needed.name, "broken", shown, command))
        elif needed.name in main:
            findings.append(Finding(needed.name, "ok", version))
    return findings


def check_optional(config: RunConfig) -> list[Finding]:
    """Packages that a setting needs beside raydr's own: a reader's, that of adapters, those of int8."""
    reader = config.data.reader
    needed = {reader.package_needed: f"data.reader {reader.name}"} if reader.package_needed else {}
    adapted = [key for key in flatten(config.model_dump()) if key.endswith("optimizer.lora.rank")]
    needed |= {"peft": adapted[0].removesuffix(".rank")} if adapted else {}
    findings = []
    for package, by in needed.items():
        if find_spec(package) is None:
            wanted = f"not installed, and {by} needs it"
            findings.append(Finding(package, "broken", wanted, f"pip install {package}"))
        else:
            findings.append(Finding(package, "ok", f"is there, as {by} needs it"))
    if config.encode.dtype == "int8":
        from raydr.models.int8 import missing_for_int8

        lacking = missing_for_int8()
        findings.append(
            Finding("int8", "broken", *lacking) if lacking else Finding("int8", "ok", "can be computed here")
        )
    return findings


def check_faiss(distributions: Sequence[str] | None = None, num_gpus: int = 0) -> Finding:
    """Which FAISS there is; two distributions overwrite each other's files."""
    packages = backend.installed() if distributions is None else list(distributions)
    shown = ", ".join(f"{name} {installed(name)}".strip() for name in packages)
    if not packages:
        return Finding("faiss", "broken", "not installed", "pip install faiss-cpu, or faiss-gpu on a GPU machine")
    if len(packages) > 1:
        advice = f"pip uninstall -y {' '.join(packages)}, then pip install the one you want"
        return Finding("faiss", "broken", f"{shown}: they overwrite each other", advice)
    if packages != ["faiss-cpu"] and not num_gpus:
        advice = "search runs on the CPU; faiss-cpu is enough"
        return Finding("faiss", "warning", f"{shown}, but there is no GPU", advice)
    if packages == ["faiss-cpu"] and num_gpus:
        return Finding("faiss", "ok", f"{shown}: search runs on the CPU, faiss-gpu would use the GPU")
    return Finding("faiss", "ok", shown)


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver reports it; some devices and rights give no number of its memory."""

    name: str
    driver: str
    memory_gib: float | None


def find_gpus() -> list[Gpu]:
    """The GPUs that NVIDIA's driver reports; none without a driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
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
    return [
        Gpu(name, driver, float(memory) / 1024 if re.fullmatch(r"[\d.]+", memory) else None)
        for name, driver, memory in rows
    ]


def wants_gpus(config: RunConfig | None) -> bool:
    """Whether a config asks this machine for GPUs; a cluster brings its own."""
    return config is not None and not address_of(config.ray) and asks_for_gpus(config)


def torch_gpus() -> tuple[int, str | None]:
    """How many GPUs PyTorch can use, and the CUDA it was built for; None for a CPU build."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda


def check_gpus(gpus: list[Gpu], torch_sees: int, torch_cuda: str | None, wanted: bool) -> Finding:
    """The driver's GPUs against PyTorch's; see :func:`torch_gpus` and :func:`wants_gpus`."""
    if not gpus and wanted:
        advice = (
            "install NVIDIA's driver, give the address of a cluster with GPUs in ray.address, or set "
            "train.use_gpu: false, encode.gpus_per_actor: 0 and device: cpu"
        )
        return Finding("gpu", "broken", "none, but the config asks for GPUs", advice)
    if not gpus:
        return Finding("gpu", "ok", "none: everything runs on the CPU")
    size = "" if gpus[0].memory_gib is None else f" ({gpus[0].memory_gib:.0f} GiB)"
    shown = f"{len(gpus)} x {gpus[0].name}{size}, driver {gpus[0].driver}"
    if torch_cuda is None:
        advice = "pip install torch from the default index, without +cpu"
        return Finding("gpu", "broken", f"{shown}, but PyTorch is a CPU build", advice)
    if torch_sees < len(gpus):
        advice = "check CUDA_VISIBLE_DEVICES and the container"
        if int(gpus[0].driver.partition(".")[0]) < OLDEST_DRIVER:
            advice = f"install NVIDIA driver {OLDEST_DRIVER} or newer"
        # Some of them, as on a shared machine: what it sees works.
        state: State = "warning" if torch_sees else "broken"
        return Finding("gpu", state, f"{shown}; PyTorch (CUDA {torch_cuda}) sees {torch_sees}", advice)
    return Finding("gpu", "ok", f"{shown}, PyTorch for CUDA {torch_cuda}")


def check_shared_memory(object_store_gib: float, folder: str = "/dev/shm") -> Finding:
    """Ray keeps objects in shared memory; where it does not fit they go to a disk."""
    if not Path(folder).is_dir():
        return Finding("shared memory", "ok", f"this system has no {folder}")
    size = shutil.disk_usage(folder)
    shown = f"{folder}: {size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    if size.free >= object_store_gib * GIB:
        return Finding("shared memory", "ok", shown)
    shown += f", ray.object_store_gib is {object_store_gib:g}"
    advice = "Ray will use a disk instead, slowly: start the container with --shm-size, or lower ray.object_store_gib"
    return Finding("shared memory", "warning", shown, advice)


def free_bytes(folder: str) -> tuple[int, Path]:
    """Bytes that are free where something is written, and the nearest folder above it that is there."""
    existing = next(path for path in (Path(folder).absolute(), *Path(folder).absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free, existing


def check_disk(what: str, folder: str) -> Finding:
    """Free space where something is written."""
    free, existing = free_bytes(folder)
    shown = f"{free / GIB:.1f} GiB free at {existing}"
    if free >= LITTLE_DISK_GIB * GIB:
        return Finding(what, "ok", shown)
    advice = "21 million vectors of 768 float16 take 32 GB twice (vectors and index): free space, or move it"
    return Finding(what, "warning", shown, advice)


def check_disks(ray: RayConfig, workdir: str = "") -> list[Finding]:
    """Where Ray writes its logs and spilled objects, and the working folder if there is a local one."""
    findings = [check_disk("disk for Ray", ray.temp_dir or tempfile.gettempdir())]
    return findings + ([check_disk("disk for artefacts", workdir)] if workdir and "://" not in workdir else [])


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -n {min(65536, hard) if hard > 0 else 65536} before Ray is started"
    few = soft < FEW_OPEN_FILES
    return Finding("open files", "warning" if few else "ok", f"at most {soft}", advice if few else "")
