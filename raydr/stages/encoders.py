"""The workers that hold an encoder, or a judge: what each needs, how many fit, and in which arithmetic they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raydr.errors import ConfigError, ModelError
from raydr.models.config import Dtype
from raydr.models.encode_config import EncodeConfig
from raydr.runtime.capacity import describe_capacity
from raydr.runtime.console import counted, say
from raydr.stages.pool import Pool
from raydr.stages.resources import cluster_capacity


@dataclass(frozen=True)
class Arithmetic:
    """How vectors and scores are computed, resolved once for all workers.

    Args:
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``cuda``.
        token_budget: tokens of a batch, which decides how texts are padded.
        reason: why this dtype.
    """

    dtype: str
    device: str
    token_budget: int
    reason: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """What of it vectors and scores depend on."""
        return {"dtype": self.dtype, "token_budget": self.token_budget}


def resolve_arithmetic(settings: EncodeConfig, pool: Pool) -> Arithmetic:
    """The arithmetic of the section ``encode``, found out where the encoders will run, which may be another machine.

    Raises:
        ConfigError: device and gpus_per_actor contradict each other, or the cluster has no GPU.
        ModelError: the device does not know that arithmetic.
    """
    device = choose_device(settings)
    dtype, reason = pool.run(
        _resolve, settings.dtype, device, num_cpus=settings.cpus_per_actor, num_gpus=settings.gpus_per_actor
    )
    return Arithmetic(dtype, device, settings.batch_tokens(device), reason)


def _resolve(dtype: Dtype, device: str) -> tuple[str, str]:
    # PyTorch takes seconds to import, and the driver may have no use for it.
    from raydr.models.precision import resolve_dtype

    require_device(device)
    return resolve_dtype(dtype, device)


def require_device(device: str) -> None:
    """Fail if CUDA is asked for in a process that has none.

    Raises:
        ModelError: there is no CUDA device here; raydr never goes on with the CPU by itself.
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
    """``cuda`` if every actor is given (a share of) a GPU, else ``cpu``.

    Raises:
        ConfigError: device and gpus_per_actor contradict each other, or the cluster has no GPU.
    """
    gpus = settings.gpus_per_actor
    if settings.device == "cuda" and gpus == 0:
        raise ConfigError("encode.device is cuda but encode.gpus_per_actor is 0: set it to 1, or to a share of a GPU")
    if settings.device == "cpu" and gpus > 0:
        raise ConfigError(f"encode.device is cpu but encode.gpus_per_actor is {gpus:g}: set one of them otherwise")
    if gpus > 0 and cluster_capacity()["GPU"] < gpus:
        raise ConfigError(
            f"encode.gpus_per_actor is {gpus:g}, but the cluster has {cluster_capacity()['GPU']:g} GPUs: "
            "add a node with one, or set encode.gpus_per_actor=0 to encode on CPUs"
        )
    return "cuda" if gpus > 0 else "cpu"


def plan_encoders(settings: EncodeConfig) -> tuple[int, int]:
    """How many encoder actors to start with and at most.

    More than ``min_actors`` start only while there is room, one tokenising task beside them included: Ray Data sees to
    that as nodes come and go. So the most is not cut to what fits now, or a node that joins later would stay idle.

    Args:
        settings: what was asked for.

    Raises:
        ConfigError: ``min_actors`` and a tokenising task do not fit.
    """
    capacity = cluster_capacity()
    fit = _fitting_actors(settings, capacity)
    lowest = f"{settings.min_actors} to " if settings.min_actors < settings.max_actors else ""
    say(
        f"{lowest}{counted(settings.max_actors, 'encoder')} of {settings.cpus_per_actor:g} CPUs and "
        f"{settings.gpus_per_actor:g} GPUs, tokenising tasks of {settings.cpus_per_tokenizer:g} CPUs, "
        f"in {describe_capacity(capacity)}"
        + (f" ({fit} fit, more start when nodes join)" if fit < settings.max_actors else "")
    )
    return settings.min_actors, settings.max_actors


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
    # Ray counts in units of 1/10,000 CPU; this keeps 0.9 / 0.3 from being rounded down to 2.
    fit = int((capacity["CPU"] - settings.cpus_per_tokenizer) / settings.cpus_per_actor + 1e-6)
    if settings.gpus_per_actor:
        fit = min(fit, int(capacity["GPU"] / settings.gpus_per_actor + 1e-6))
    if fit < settings.min_actors:
        raise ConfigError(
            f"the cluster has {capacity['CPU']:g} CPUs and {capacity['GPU']:g} GPUs: not enough for encode.min_actors "
            f"{settings.min_actors} of {settings.cpus_per_actor:g} CPUs and {settings.gpus_per_actor:g} GPUs each and "
            f"one tokenising task of {settings.cpus_per_tokenizer:g} CPUs; lower one of these settings"
        )
    return fit
