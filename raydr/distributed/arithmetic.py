"""Arithmetic and number of encoders, resolved on a node of the kind that encodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from raydr.console import counted, say
from raydr.distributed.cluster import stated_capacity
from raydr.distributed.pool import Needs, Pool
from raydr.distributed.resources import IF_IT_GROWS, cluster_capacity
from raydr.errors import ConfigError, ModelError, TrainingError
from raydr.models.config import Dtype
from raydr.models.encode_config import EncodeConfig, EncodeDtype
from raydr.training.config import TrainConfig


@dataclass(frozen=True)
class Arithmetic:
    """Device and dtype of vectors and scores, resolved once for all workers.

    Args:
        dtype: ``float32``, ``bfloat16`` or ``float16``; for passages also ``int8``.
        device: ``cpu`` or ``cuda``.
        token_budget: tokens of a batch, on which the padding of texts depends.
        reason: reason for the dtype.
    """

    dtype: str
    device: str
    token_budget: int
    reason: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """Settings on which vectors and scores depend."""
        return {"dtype": self.dtype, "token_budget": self.token_budget}

    def in_int8(self) -> Arithmetic:
        """Return the arithmetic of passages if ``encode.dtype`` is int8. Queries and pairs keep this arithmetic."""
        return replace(self, dtype="int8", reason="as configured")


def resolve_arithmetic(settings: EncodeConfig, pool: Pool) -> Arithmetic:
    """Resolve the arithmetic of the section ``encode`` on a machine of the encoders.

    int8 resolves as ``auto`` does: only passages are encoded in int8.

    Raises:
        ConfigError: the cluster has no GPU.
        ModelError: the device does not support the dtype.
    """
    device = choose_device(settings)
    needs = Needs(settings.cpus_per_actor, settings.gpus_per_actor)
    dtype, reason = pool.run(_resolve, settings.dtype, device, needs=needs)
    return Arithmetic(dtype, device, settings.batch_tokens(device), reason)


def resolve_training_dtype(pool: Pool, settings: TrainConfig, dtype: Dtype) -> tuple[str, str]:
    """Resolve the dtype of a training, and its reason, on a worker of the kind that trains.

    Raises:
        TrainingError: the settings use a GPU, and Ray has none.
        ModelError: the device does not support the dtype.
    """
    if settings.use_gpu and not pool.here and cluster_capacity()["GPU"] < 1:
        raise TrainingError(f"train.use_gpu is set, but Ray has no GPU; unset it to train on CPUs {IF_IT_GROWS}")
    device = "cuda" if settings.use_gpu else "cpu"
    needs = Needs(num_gpus=1 if settings.use_gpu else 0, labels=settings.node_labels)
    resolved: tuple[str, str] = pool.run(_resolve_dtype, dtype, device, needs=needs)
    return resolved


def _resolve(dtype: EncodeDtype, device: str) -> tuple[str, str]:
    require_device(device)
    if dtype == "int8":
        from raydr.models.int8 import require_int8

        require_int8()
        dtype = "auto"
    return _resolve_dtype(dtype, device)


def _resolve_dtype(dtype: Dtype, device: str) -> tuple[str, str]:
    # PyTorch takes seconds to import, and the driver may have no use for it.
    from raydr.models.precision import resolve_dtype

    return resolve_dtype(dtype, device)


def require_device(device: str) -> None:
    """Check that a process for ``cuda`` has a CUDA device.

    Raises:
        ModelError: there is no CUDA device; raydr does not fall back to the CPU.
    """
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise ModelError(
            f"the encoder was given a GPU by Ray, but torch {torch.__version__} sees no CUDA device there: install a "
            "CUDA build of torch and a driver, or set encode.gpus_per_actor=0"
        )


def choose_device(settings: EncodeConfig) -> str:
    """Return ``cuda`` if every actor has (a share of) a GPU, else ``cpu``.

    Raises:
        ConfigError: the cluster has no GPU.
    """
    gpus = settings.gpus_per_actor
    if gpus > 0 and cluster_capacity()["GPU"] < gpus:
        raise ConfigError(
            f"encode.gpus_per_actor is {gpus:g}, but the cluster has {cluster_capacity()['GPU']:g} GPUs: "
            f"add a node with one, or set encode.gpus_per_actor=0 to encode on CPUs {IF_IT_GROWS}"
        )
    return "cuda" if gpus > 0 else "cpu"


#: Least number of parts per started encoder; for fewer parts, the boot of a node takes longer than the work.
_PARTS_A_NODE = 4


def plan_encoders(settings: EncodeConfig, num_parts: int) -> tuple[int, int]:
    """Return the least and the largest number of encoder actors to request.

    Ray Data starts further actors only while they fit beside a tokenising task, as nodes come and go. So the maximum is
    not limited to what fits now: a node that joins later would stay idle. If ``ray.capacity`` says that the cluster
    grows, the first request is as large as the parts keep busy. Otherwise Ray Data would double the cluster step by
    step, and wait for the boot of a node each time.

    Args:
        settings: number and size of the encoders.
        num_parts: number of parts to encode.

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
    """Return how many encoders fit beside a tokenising task; the integer part counts."""
    places = (capacity["CPU"] - settings.cpus_per_tokenizer) / settings.cpus_per_actor
    if settings.gpus_per_actor:
        places = min(places, capacity["GPU"] / settings.gpus_per_actor)
    # Ray counts in units of 1/10,000 CPU; this keeps 0.9 / 0.3 from being rounded down to 2.
    return places + 1e-6


def check_encoders(settings: EncodeConfig) -> None:
    """Check before a training that the encoders after it can run on this cluster.

    Raises:
        ConfigError: the settings contradict each other, or ask for more than the cluster has.
    """
    choose_device(settings)
    _fitting_actors(settings, cluster_capacity())


def _fitting_actors(settings: EncodeConfig, capacity: dict[str, float]) -> int:
    """Return how many encoder actors fit."""
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
