"""The workers that hold an encoder, or a judge: what each needs, and how many fit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from raydr.errors import ConfigError
from raydr.models.encode_config import EncodeConfig
from raydr.runtime.cluster import stated_capacity
from raydr.runtime.console import counted, say
from raydr.stages.arithmetic import choose_device
from raydr.stages.resources import IF_IT_GROWS, cluster_capacity

#: Parts of an encoder for which a node is started: for fewer its boot would take longer than they do.
_PARTS_A_NODE = 4


def plan_encoders(settings: EncodeConfig, num_parts: int) -> tuple[int, int]:
    """How many encoder actors to ask for at once, and at most.

    More start only while there is room, one tokenising task beside them included: Ray Data sees to that as nodes come
    and go. So the most is not cut to what fits now, or a node that joins later would stay idle. Where
    ``ray.capacity`` says that the cluster grows, as many are asked for at once as the parts keep busy: left to itself
    Ray Data doubles the cluster, and waits for the boot of a node each time.

    Args:
        settings: what was asked for.
        num_parts: of the work.

    Raises:
        ConfigError: ``min_actors`` and a tokenising task do not fit.
    """
    capacity = cluster_capacity()
    fit = _fitting_actors(settings, capacity)
    fewest, most = (min(count, num_parts) for count in (settings.min_actors, settings.max_actors))
    if stated_capacity() is not None:
        fewest = max(fewest, min(most, fit, math.ceil(num_parts / _PARTS_A_NODE)))
    lowest = f"{fewest} to " if fewest < most else ""
    say(
        f"{lowest}{counted(most, 'encoder')} of {settings.cpus_per_actor:g} CPUs and "
        f"{settings.gpus_per_actor:g} GPUs, tokenising tasks of {settings.cpus_per_tokenizer:g} CPUs, "
        f"in a cluster of {capacity['CPU']:g} CPUs and {capacity['GPU']:g} GPUs"
        + (f" ({fit} fit, more start when nodes join)" if fit < most else "")
    )
    return fewest, most


def places_for_encoders(settings: EncodeConfig, capacity: Mapping[str, float]) -> float:
    """How many encoders have room beside one tokenising task; whole ones are what is below."""
    places = (capacity["CPU"] - settings.cpus_per_tokenizer) / settings.cpus_per_actor
    if settings.gpus_per_actor:
        places = min(places, capacity["GPU"] / settings.gpus_per_actor)
    # Ray counts in units of 1/10,000 CPU; this keeps 0.9 / 0.3 from being rounded down to 2.
    return places + 1e-6


def check_encoders(settings: EncodeConfig) -> None:
    """Find out now, rather than after the training before it, that the encoders cannot run here.

    Raises:
        ConfigError: the settings contradict each other, or ask for more than the cluster has.
    """
    choose_device(settings)
    _fitting_actors(settings, cluster_capacity())


def _fitting_actors(settings: EncodeConfig, capacity: dict[str, float]) -> int:
    """How many encoder actors there is room for."""
    if settings.max_actors < settings.min_actors:
        raise ConfigError(
            f"encode.max_actors {settings.max_actors} is less than encode.min_actors {settings.min_actors}"
        )
    fit = int(places_for_encoders(settings, capacity))
    if fit < settings.min_actors:
        raise ConfigError(
            f"the cluster has {capacity['CPU']:g} CPUs and {capacity['GPU']:g} GPUs: not enough for encode.min_actors "
            f"{settings.min_actors} of {settings.cpus_per_actor:g} CPUs and {settings.gpus_per_actor:g} GPUs each and "
            f"one tokenising task of {settings.cpus_per_tokenizer:g} CPUs; lower one of these settings {IF_IT_GROWS}"
        )
    return fit
