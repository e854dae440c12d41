"""Versions of Python and packages, and which FAISS is installed."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from raydr.config.run import RunConfig
from raydr.data.readers.base import Reader
from raydr.ops.doctor.finding import Finding
from raydr.store.identity import flatten

#: Shown by name; the other requirements only if they do not fit.
MAIN = ("ray", "torch", "transformers", "mlflow")
#: Packages that bring the module ``faiss``; only one may be installed.
FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cuvs")
OLDEST_PYTHON = (3, 11)


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_python(running: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    shown = ".".join(str(part) for part in running)
    if running < OLDEST_PYTHON:
        return Finding.broken("python", shown, "raydr needs Python 3.11 or newer: make an environment with it")
    return Finding.ok("python", f"{shown} ({platform.platform(terse=True)})")


def check_packages(
    requirements: list[str] | None = None, find: Callable[[str], str] = version, main: tuple[str, ...] = MAIN
) -> list[Finding]:
    """Installed versions against what raydr asks for.

    Args:
        requirements: in pip's notation; raydr's own, without its extras, by default.
        find: gives the version of a package or raises :class:`PackageNotFoundError`.
        main: packages that are shown in any case.
    """
    if requirements is None:
        try:
            requirements = requires("raydr") or []
        except PackageNotFoundError:
            return [
                Finding.warning(
                    "packages",
                    "raydr runs from a folder and is not installed: what it needs cannot be compared",
                    "pip install --constraint constraints.txt '.[cpu]' in the repository, or [gpu]",
                )
            ]
    findings = []
    for one in map(Requirement, requirements):
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        finding = _check_package(one, find)
        if finding.state != "ok" or one.name in main:
            findings.append(finding)
    return findings


def _check_package(needed: Requirement, find: Callable[[str], str]) -> Finding:
    command = f"pip install --constraint constraints.txt '{needed.name}{needed.specifier}'"
    try:
        there = find(needed.name)
    except PackageNotFoundError:
        return Finding.broken(needed.name, "not installed", command)
    if not _fits(needed.specifier, there):
        return Finding.broken(needed.name, f"{there}, raydr needs {needed.specifier}", command)
    return Finding.ok(needed.name, there)


def _fits(allowed: SpecifierSet, there: str) -> bool:
    # A local part (+cu130) says how it was built, not which version it is.
    return allowed.contains(re.sub(r"\+.*$", "", there), prereleases=True)


def check_reader(reader: Reader) -> list[Finding]:
    """The package that a reader needs beside raydr's own."""
    return [_needed(reader.package_needed, f"data.reader {reader.name}")] if reader.package_needed else []


def check_adapters(config: RunConfig) -> list[Finding]:
    """The package that adapters need, where one of the run's trainings has them."""
    wanting = [key for key in flatten(config.model_dump()) if key.endswith("optimizer.lora.rank")]
    return [_needed("peft", wanting[0].removesuffix(".rank"))] if wanting else []


def check_int8(config: RunConfig) -> list[Finding]:
    """Packages and processor, where passages are encoded in int8."""
    from raydr.models.int8 import missing_for_int8

    if config.encode.dtype != "int8":
        return []
    lacking = missing_for_int8()
    return [Finding.ok("int8", "can be computed here") if lacking is None else Finding.broken("int8", *lacking)]


def _needed(package: str, by: str) -> Finding:
    if find_spec(package) is None:
        return Finding.broken(package, f"not installed, and {by} needs it", f"pip install {package}")
    return Finding.ok(package, f"is there, as {by} needs it")


def check_faiss(installed: Mapping[str, str], num_gpus: int) -> Finding:
    """Which FAISS there is; two packages overwrite each other's files.

    >>> check_faiss({"faiss-cpu": "1.15.1"}, num_gpus=0).found
    'faiss-cpu 1.15.1'
    """
    if not installed:
        return Finding.broken("faiss", "not installed", "pip install faiss-cpu, or faiss-gpu on a GPU machine")
    shown = ", ".join(f"{name} {there}" for name, there in installed.items())
    if len(installed) > 1:
        return Finding.broken(
            "faiss",
            f"{shown}: they overwrite each other",
            f"pip uninstall -y {' '.join(installed)}, then pip install the one you want",
        )
    [name] = installed
    if name != "faiss-cpu" and not num_gpus:
        return Finding.warning("faiss", f"{shown}, but there is no GPU", "search runs on the CPU; faiss-cpu is enough")
    if name == "faiss-cpu" and num_gpus:
        return Finding.ok("faiss", f"{shown}: search runs on the CPU, faiss-gpu would use the GPU")
    return Finding.ok("faiss", shown)
