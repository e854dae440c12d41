"""Waiting until Ray's CPUs are free again."""

from __future__ import annotations

import sys
import time

import ray
from ray import cloudpickle

from raydr.tuning.resources import describe_booked

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

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
