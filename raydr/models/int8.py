"""Encoders in int8 for CPUs: OpenVINO's graph of an encoder, quantised by NNCF (extra ``int8``).

Each product multiplies bytes: weights with a scale per output, and inputs with a single scale, measured on passages.
Before, SmoothQuant (Xiao et al., ICML 2023) moves a part of the inputs' spread into the weights. Reduction, projection
and normalisation stay in float32.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raydr.errors import ModelError, first_line
from raydr.models.batching import padded_batches
from raydr.models.config import Side
from raydr.models.dual_encoder import load_tower
from raydr.models.precision import cpu_has_int8
from raydr.models.tokens import Tokens
from raydr.models.tower import Tower

#: Share of the spread that SmoothQuant moves, as an exponent.
_SMOOTHING = 0.8
#: Tokens of a batch of the measurement, which depends on it only by the padding.
_BATCH_TOKENS = 1024
#: Minimum of the mean cosine to the float vectors; all-MiniLM-L6-v2 has 0.99.
_LEAST_COSINE = 0.9
_FILE = "encoder.xml"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def missing_for_int8() -> tuple[str, str] | None:
    """Return what this machine lacks for int8, and a remedy; None if it lacks nothing."""
    packages = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    if packages:
        return f"{' and '.join(packages)} not installed", f"pip install {' '.join(packages)} (raydr's extra int8)"
    if not cpu_has_int8():
        # With AVX2 alone, sums of products of bytes overflow.
        problem = "the processor has no instructions that multiply bytes (AVX512-VNNI, AVX-VNNI or AMX)"
        return problem, "set encode.dtype=auto, or encode on another kind of machine"
    return None


def require_int8() -> None:
    """Refuse a machine that cannot compute in int8.

    Raises:
        ModelError: a package is missing, or the processor cannot multiply bytes.
    """
    missing = missing_for_int8()
    if missing is not None:
        raise ModelError(f"encode.dtype is int8, and where encoders run {missing[0]}: {missing[1]}")


def _openvino() -> Any:
    """Import OpenVINO without its telemetry."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


class _Int8Backbone(nn.Module):
    """A backbone in int8, in place of a tower's Hugging Face model.

    Args:
        graph: graph of OpenVINO, or its file.
        num_threads: threads of OpenVINO; those of PyTorch if None.
    """

    def __init__(self, graph: Any, num_threads: int | None) -> None:
        super().__init__()
        # A tower's device is that of its weights.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        options = {
            "INFERENCE_NUM_THREADS": num_threads or torch.get_num_threads(),
            # Results outside int8 must not depend on whether the processor has bfloat16.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            # Pinned encoders on the same machine would all use its first cores.
            "ENABLE_CPU_PINNING": False,
        }
        compiled = _openvino().Core().compile_model(graph, "CPU", options)
        self.names = [input_.any_name for input_ in compiled.inputs]
        self.request = compiled.create_infer_request()

    def forward(self, **inputs: Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        [hidden_NLD] = self.request.infer({name: inputs[name].numpy() for name in self.names}).values()
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden_NLD))


class _HiddenStates(nn.Module):
    """A Hugging Face model with tensors as inputs and output, as OpenVINO requires."""

    def __init__(self, backbone: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.backbone = backbone
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden_NLD: Tensor = self.backbone(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return hidden_NLD


def load_int8_tower(model: str | Path, side: Side, quantized: str | Path, num_threads: int | None) -> Tower:
    """Open a side's tower of a saved model, with its encoder in int8.

    Args:
        model: folder of the model.
        side: side of the tower.
        quantized: folder written by :func:`quantize`.
        num_threads: threads of OpenVINO; those of PyTorch if None.

    Raises:
        ModelError: this machine cannot compute in int8.
    """
    require_int8()
    tower = load_tower(model, side).ready("cpu", torch.float32)
    tower.backbone = _Int8Backbone(f"{quantized}/{_FILE}", num_threads)
    return tower


@torch.inference_mode()
def quantize(tower: Tower, tokens: Tokens, pad_id: int, side: Side, folder: str | Path) -> dict[str, float]:
    """Write a tower's encoder in int8, and compare its vectors with the float vectors.

    Args:
        tower: tower in float32, ready for inference; the call replaces its encoder.
        tokens: tokens of the texts on which scales are measured.
        pad_id: id of the padding token.
        side: side of the texts.
        folder: local folder to write.

    Returns:
        The cosines of these texts to the float vectors: ``mean`` and ``lowest``.

    Raises:
        ModelError: OpenVINO cannot convert the encoder, or the vectors differ too much.
    """
    require_int8()
    openvino = _openvino()
    import nncf

    batches = [batch for _, batch in padded_batches(tokens, _BATCH_TOKENS, pad_id)]
    exact = [tower(**batch, side=side) for batch in batches]
    names = _INPUTS if tower.uses_token_types else _INPUTS[:2]
    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING)
    try:
        with _in_silence():
            graph = nncf.quantize(
                _graph(openvino, tower, names),
                nncf.Dataset([{name: batch[name].numpy() for name in names} for batch in batches]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(batches),
                advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=smoothing),
            )
    except Exception as error:  # PyTorch's trace, OpenVINO and NNCF have no common class of errors.
        raise ModelError(
            f"encode.dtype is int8, and OpenVINO cannot convert {type(tower.backbone).__name__}: {first_line(error)}"
            "; set encode.dtype=auto"
        ) from error
    openvino.save_model(graph, f"{folder}/{_FILE}", compress_to_fp16=False)
    tower.backbone = _Int8Backbone(graph, None)
    cosines = torch.cat(
        [_cosines(tower(**batch, side=side), exact_batch) for batch, exact_batch in zip(batches, exact, strict=True)]
    )
    mean = float(cosines.mean())
    if mean < _LEAST_COSINE:
        raise ModelError(
            f"encode.dtype is int8: the vectors of {tokens.num_rows} texts have a mean cosine of {mean:.3f} to those "
            f"in float32; expected at least {_LEAST_COSINE}. 8 bits are too few for this encoder: set "
            "encode.dtype=auto"
        )
    return {"mean": mean, "lowest": float(cosines.min())}


@contextmanager
def _in_silence() -> Iterator[None]:
    """Silence NNCF's progress bars and PyTorch's warnings about traces inside the block."""
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _cosines(vectors: Tensor, exact: Tensor) -> Tensor:
    """Compute the cosine of each vector and its float vector, without padding."""
    cosines = nn.functional.cosine_similarity(vectors, exact, dim=-1)
    return cosines[exact.any(dim=-1)]


def _graph(openvino: Any, tower: Tower, names: tuple[str, ...]) -> Any:
    """Convert a tower's encoder to OpenVINO's float32 graph, for texts of any number and length."""
    # The trace drops the mask unless the example has padding.
    example = {name: torch.ones((3, 7), dtype=torch.int64) for name in names}
    example["attention_mask"][1, 4:] = 0
    # Decoders would return keys and values as well.
    tower.backbone.config.use_cache = False  # type: ignore[union-attr]
    graph = openvino.convert_model(_HiddenStates(tower.backbone, names), example_input=tuple(example.values()))
    for name, input_ in zip(names, graph.inputs, strict=True):
        input_.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
        input_.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()
    return graph
