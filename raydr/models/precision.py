"""Arithmetic of a device: which data type it computes in and why, and its number of threads."""

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
    """Return a network with its weights in an arithmetic.

    Frequencies of rotary positions stay in float32: in bfloat16 the hundredth token's rotation would be wrong by up to
    0.4 radians.
    """
    frequencies = {name: buffer for name, buffer in network.named_buffers() if name.endswith("inv_freq")}
    network.to(dtype=dtype)
    for name, buffer in frequencies.items():
        holder, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(holder), attribute, buffer)
    return network


@contextmanager
def evaluating(model: nn.Module, dtype: torch.dtype) -> Iterator[torch.device]:
    """Put a model in training into inference, in an arithmetic, inside the block; yield its device."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    with autocast(device, dtype):
        yield device
    model.train(was_training)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Compute products in an arithmetic inside the block."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def resolve_dtype(dtype: Dtype, device: str) -> tuple[str, str]:
    """Return the arithmetic for a device and the reason; ``auto`` takes bfloat16 where the hardware has it.

    Raises:
        ModelError: float16 was asked for on a CPU, or bfloat16 on a GPU without it.

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
    """Compute with so many threads inside the block; afterwards the process has its own number again.

    Args:
        num_threads: the number; None: as many as the process has anyway.

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
