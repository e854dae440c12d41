"""Waiting until Ray's CPUs are free again."""

from __future__ import annotations

import sys

import ray
from patience import wait_until
from ray import cloudpickle

from raydr.tuning.resources import describe_booked

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0))


def wait_for_cpus(number: float) -> None:
    try:
        wait_until(lambda: free_cpus() == number, f"{number:g} CPUs are free")
    except AssertionError as error:
        raise AssertionError(describe_booked()) from error
