"""Waiting until Ray's CPUs are free again."""

from __future__ import annotations

import time

import ray

from raydr.tuning.resources import describe_booked

#: Seconds between two looks, and looks until the CPUs have to be back.
POLL_S, LOOKS = 0.1, 600


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0))


def wait_for_cpus(number: float) -> None:
    for _ in range(LOOKS):
        if free_cpus() == number:
            return
        time.sleep(POLL_S)
    raise AssertionError(describe_booked())
