"""The dtype of computations by device, and the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from raydr.errors import ModelError
from raydr.models.config import Dtype

Network = TypeVar("Network", bound=nn.Module)
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    return _TORCH[name]


def in_arithmetic(network: Network, dtype: torch.dtype) -> Network:
    """Convert the weights of a network to a dtype, and return it.

    Frequencies of rotary positions stay in float32: in bfloat16 the rotation of the hundredth token would be off by up
    to 0.4 radians.
    """
    frequencies = {name: buffer for name, buffer in network.named_buffers() if name.endswith("inv_freq")}
    network.to(dtype=dtype)
    for name, buffer in frequencies.items():
        holder, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(holder), attribute, buffer)
    return network


@contextmanager
def evaluating(model: nn.Module, dtype: torch.dtype) -> Iterator[torch.device]:
    """Put a model into eval mode and autocast to a dtype inside the block; yield its device."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    with autocast(device, dtype):
        yield device
    model.train(was_training)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return a context in which products are computed in a dtype; float32 changes nothing."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def resolve_dtype(dtype: Dtype, device: str) -> tuple[str, str]:
    """Return the dtype for a device and the reason; ``auto`` is bfloat16 if the hardware supports it, else float32.

    Raises:
        ModelError: ``dtype`` is float16 on a CPU, or bfloat16 on a GPU without it.

    >>> resolve_dtype("float32", "cpu")
    ('float32', 'as configured')
    """
    if device.startswith("cuda"):
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        what = torch.cuda.get_device_name()
    else:
        has_bf16 = cpu_has_bfloat16()
        what = "this processor"
    if dtype == "auto":
        if has_bf16:
            return "bfloat16", f"{what} multiplies bfloat16 natively"
        return "float32", f"{what} has no bfloat16 arithmetic"
    if dtype == "float16" and device == "cpu":
        raise ModelError("dtype float16 is for GPUs; on a CPU use bfloat16, float32 or auto")
    if dtype == "bfloat16" and device.startswith("cuda") and not has_bf16:
        raise ModelError(f"dtype bfloat16 is not supported by {what}; use float16, float32 or auto")
    return dtype, "as configured"


def cpu_has_bfloat16() -> bool:
    """Return True if the processor has instructions that multiply bfloat16 (AVX512-BF16, AMX or Arm's BF16)."""
    return _cpu_has("avx512_bf16", "amx_bf16", " bf16")


def cpu_has_int8() -> bool:
    """Return True if the processor multiplies bytes and adds up in int32 (AVX512-VNNI, AVX-VNNI or AMX)."""
    return _cpu_has("avx512_vnni", "avx_vnni", "amx_int8")


def _cpu_has(*flags: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    description = cpuinfo.read_text() if cpuinfo.exists() else ""
    return any(flag in description for flag in flags)


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Compute with a number of threads inside the block, and restore the number afterwards.

    Args:
        num_threads: number of threads; None keeps that of the process.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(before + 1):
    ...     torch.get_num_threads() == before + 1
    True
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
