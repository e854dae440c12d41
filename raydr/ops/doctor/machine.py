"""Checks of this machine: Python, packages, FAISS, GPUs and their driver, shared memory, disks, open files."""

from __future__ import annotations

import platform
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
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
#: Packages that are always listed; other requirements are listed only if they do not fit.
MAIN = ("ray", "torch", "transformers", "mlflow")
#: PyTorch's wheels are built for CUDA 13, which needs this driver.
OLDEST_DRIVER = 580
#: Free space below which doctor warns: room for a small run, Ray's logs and spilled objects.
LITTLE_DISK_GIB = 10.0
#: Limit of open files below which doctor warns: Ray opens a socket or two for every worker and connection.
FEW_OPEN_FILES = 8192

#: ``warning``: a run works, but slower or not as configured; ``broken``: it will fail.
State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """The result of a check: its name, state, observation, and advice if it is not ok. Holds no secrets."""

    check: str
    state: State
    observation: str
    advice: str = ""


def installed(name: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def check_packages(requirements: list[str] | None = None, find: Callable[[str], str] = installed) -> list[Finding]:
    """Compare installed versions with raydr's requirements.

    Args:
        requirements: in pip's notation; by default raydr's own, without its extras.
        find: returns the version of a package.
    """
    command = "pip install --constraint constraints.txt"
    if requirements is None and not installed("raydr"):
        shown = "raydr runs from a folder and is not installed: its requirements cannot be checked"
        return [Finding("packages", "warning", shown, f"{command} '.[cpu]' in the repository, or [gpu]")]
    findings = []
    for needed in map(Requirement, (requires("raydr") or []) if requirements is None else requirements):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        present = find(needed.name)
        # A local part (+cu130) names the build, not the version.
        if not present or not needed.specifier.contains(re.sub(r"\+.*$", "", present), prereleases=True):
            shown = f"{present}, raydr needs {needed.specifier}" if present else "not installed"
            findings.append(Finding(needed.name, "broken", shown, f"{command} '{needed.name}{needed.specifier}'"))
        elif needed.name in MAIN:
            findings.append(Finding(needed.name, "ok", present))
    return findings


def check_optional(config: RunConfig) -> list[Finding]:
    """Check the optional packages that the config needs: for its reader, for adapters and for int8."""
    reader = config.data.reader
    needed = {reader.package_needed: f"data.reader {reader.name}"} if reader.package_needed else {}
    adapted = [key for key in flatten(config.model_dump()) if key.endswith("optimizer.lora.rank")]
    needed |= {"peft": adapted[0].removesuffix(".rank")} if adapted else {}
    findings = [
        Finding(package, "broken", f"not installed, and {by} needs it", f"pip install {package}")
        if find_spec(package) is None
        else Finding(package, "ok", f"installed, as {by} needs it")
        for package, by in needed.items()
    ]
    if config.encode.dtype == "int8":
        from raydr.models.int8 import missing_for_int8

        lacking = missing_for_int8()
        findings.append(Finding("int8", "broken", *lacking) if lacking else Finding("int8", "ok", "works here"))
    return findings


def check_faiss(num_gpus: int = 0) -> Finding:
    """Check that exactly one distribution of FAISS is installed: two overwrite each other's files."""
    shown = ", ".join(f"{name} {installed(name)}" for name in backend.installed())
    try:
        backend.load_faiss()
    except backend.FaissError as error:
        problem, _, advice = str(error).partition(": ")
        return Finding("faiss", "broken", problem, advice)
    if backend.has_cuda() and not num_gpus:
        return Finding("faiss", "warning", f"{shown}, but there is no GPU", "faiss-cpu is enough")
    on_cpu = ": search runs on the CPU, faiss-gpu would use the GPU" if num_gpus and not backend.has_cuda() else ""
    return Finding("faiss", "ok", shown + on_cpu)


def find_gpus() -> list[str]:
    """Return name and driver of each GPU that NVIDIA's driver reports, such as ``NVIDIA A10G, 580.95.05``."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.SubprocessError):
        return []


def check_gpus(config: RunConfig | None, gpus: list[str], usable: int, cuda: str | None) -> Finding:
    """Compare the GPUs that the driver reports with those that PyTorch sees.

    Args:
        config: config of a run, which may ask for GPUs of this machine; a cluster has its own.
        gpus: see :func:`find_gpus`.
        usable: GPUs that PyTorch sees.
        cuda: the CUDA that PyTorch was built for; None for a CPU build.
    """
    if not gpus and config is not None and not address_of(config.ray) and asks_for_gpus(config):
        advice = (
            "install NVIDIA's driver, give the address of a cluster with GPUs in ray.address, or set "
            "train.use_gpu: false, encode.gpus_per_actor: 0 and search.device: cpu"
        )
        return Finding("gpu", "broken", "none, but the config asks for GPUs", advice)
    if not gpus:
        return Finding("gpu", "ok", "none: everything runs on the CPU")
    name, _, driver = gpus[0].partition(", ")
    shown = f"{len(gpus)} x {name}, driver {driver}"
    if cuda is None:
        advice = "pip install torch from the default index, without +cpu"
        return Finding("gpu", "broken", f"{shown}, but PyTorch is a CPU build", advice)
    if usable < len(gpus):
        old = int(driver.partition(".")[0]) < OLDEST_DRIVER
        advice = f"NVIDIA driver {OLDEST_DRIVER} or newer" if old else "check CUDA_VISIBLE_DEVICES and the container"
        # Some are hidden, as on a shared machine: those that PyTorch sees work.
        state: State = "warning" if usable else "broken"
        return Finding("gpu", state, f"{shown}; PyTorch (CUDA {cuda}) sees {usable}", advice)
    return Finding("gpu", "ok", f"{shown}, PyTorch for CUDA {cuda}")


def check_shared_memory(object_store_gib: float, folder: str = "/dev/shm") -> Finding:
    """Check that Ray's object store fits into shared memory; otherwise Ray puts objects on a disk."""
    if not Path(folder).is_dir():
        return Finding("shared memory", "ok", f"this system has no {folder}")
    size = shutil.disk_usage(folder)
    shown = f"{folder}: {size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    if size.free >= object_store_gib * GIB:
        return Finding("shared memory", "ok", shown)
    shown += f", ray.object_store_gib is {object_store_gib:g}"
    advice = "Ray will use a disk instead, slowly: start the container with --shm-size, or lower ray.object_store_gib"
    return Finding("shared memory", "warning", shown, advice)


def check_disk(what: str, folder: str, needed_gib: float = LITTLE_DISK_GIB, planned: str = "") -> Finding:
    """Check the free space of a disk.

    Args:
        what: name of the check.
        folder: a folder on the disk, which need not exist yet.
        needed_gib: less is a warning, or broken if a plan needs it.
        planned: the plan in words; empty without a plan.
    """
    existing = next(path for path in (Path(folder).absolute(), *Path(folder).absolute().parents) if path.is_dir())
    free_gib = shutil.disk_usage(existing).free / GIB
    shown = f"{free_gib:,.1f} GiB free at {existing}" + (f", {needed_gib:,.1f} {planned}" if planned else "")
    if free_gib >= needed_gib:
        return Finding(what, "ok", shown)
    advice = "free space, move it, or see `raydr plan`: 21 million vectors of 768 float16 take 32 GB twice"
    return Finding(what, "broken" if planned else "warning", shown, advice)


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= FEW_OPEN_FILES:
        return Finding("open files", "ok", f"at most {soft}")
    advice = f"ulimit -n {min(65536, hard) if hard > 0 else 65536} before Ray is started"
    return Finding("open files", "warning", f"at most {soft}", advice)


def check_machine(config: RunConfig | None = None) -> list[Finding]:
    """Run all checks of this machine, also for the needs of a config."""
    import torch

    gpus, ray = find_gpus(), config.ray if config else RayConfig()
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        # Older Pythons cannot import raydr.
        Finding("python", "ok", f"{platform.python_version()} ({platform.platform(terse=True)})"),
        *check_packages(),
        *(check_optional(config) if config else []),
        check_faiss(num_gpus=len(gpus)),
        check_gpus(config, gpus, usable, torch.version.cuda),
        check_shared_memory(ray.object_store_gib),
        check_disk("disk for Ray", ray.temp_dir or tempfile.gettempdir()),
        check_open_files(),
    ]
