"""Encoders in int8 for processors: OpenVINO's graph of an encoder, quantised by NNCF (extra ``int8``).

Each product multiplies bytes: weights with a scale for every output, inputs with one scale for all, which is measured
on passages beforehand. Before that SmoothQuant (Xiao et al., ICML 2023) moves a part of the spread of the inputs into
the weights. Reduction, projection and unit length stay those of the tower, in float32.
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
#: Tokens of a batch while scales are measured: what is measured does not depend on it but by its padding.
_BATCH_TOKENS = 1024
#: The mean cosine to the float vectors below which something went wrong; all-MiniLM-L6-v2 has 0.99.
_LEAST_COSINE = 0.9
_FILE = "encoder.xml"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def missing_for_int8() -> tuple[str, str] | None:
    """Return what this machine lacks for int8, and what to do; None if nothing."""
    packages = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    if packages:
        return f"{' and '.join(packages)} not installed", f"pip install {' '.join(packages)} (raydr's extra int8)"
    if not cpu_has_int8():
        # With AVX2 alone sums of products of bytes overflow.
        problem = "the processor has no instructions that multiply bytes (AVX512-VNNI, AVX-VNNI or AMX)"
        return problem, "set encode.dtype=auto, or encode on another kind of machine"
    return None


def require_int8() -> None:
    """Refuse a machine that cannot compute in int8.

    Raises:
        ModelError: a package is missing, or the processor multiplies no bytes.
    """
    lacking = missing_for_int8()
    if lacking is not None:
        raise ModelError(f"encode.dtype is int8, and where encoders run {lacking[0]}: {lacking[1]}")


def _openvino() -> Any:
    """Import OpenVINO without its report of each use to its makers."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


class _Int8Backbone(nn.Module):
    """A backbone in int8 in the place of a tower's Hugging Face model.

    Args:
        graph: OpenVINO's, or the file of one.
        num_threads: that it computes with; as many as PyTorch if None.
    """

    def __init__(self, graph: Any, num_threads: int | None) -> None:
        super().__init__()
        # A tower is where its weights are.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        how = {
            "INFERENCE_NUM_THREADS": num_threads or torch.get_num_threads(),
            # What is not int8 is computed alike by processors with and without bfloat16.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            # Several encoders on a machine would all take its first cores.
            "ENABLE_CPU_PINNING": False,
        }
        compiled = _openvino().Core().compile_model(graph, "CPU", how)
        self.names = [input_.any_name for input_ in compiled.inputs]
        self.request = compiled.create_infer_request()

    def forward(self, **inputs: Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        [hidden_NLD] = self.request.infer({name: inputs[name].numpy() for name in self.names}).values()
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden_NLD))


class _HiddenStates(nn.Module):
    """A Hugging Face model of tensors alone, as OpenVINO wants it."""

    def __init__(self, backbone: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.backbone = backbone
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden_NLD: Tensor = self.backbone(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return hidden_NLD


def load_int8_tower(model: str | Path, side: Side, quantized: str | Path, num_threads: int | None) -> Tower:
    """Open one side of a saved model, its encoder in int8.

    Args:
        model: the model's folder.
        side: which side.
        quantized: a folder that :func:`quantize` has written.
        num_threads: that it computes with; as many as PyTorch if None.

    Raises:
        ModelError: int8 cannot be computed here.
    """
    require_int8()
    tower = load_tower(model, side).ready("cpu", torch.float32)
    tower.backbone = _Int8Backbone(f"{quantized}/{_FILE}", num_threads)
    return tower


@torch.inference_mode()
def quantize(tower: Tower, tokens: Tokens, pad_id: int, side: Side, folder: str | Path) -> dict[str, float]:
    """Write a tower's encoder in int8, and compare its vectors with those of the tower.

    Args:
        tower: in float32, ready for inference; its own encoder is replaced.
        tokens: of the texts that scales are measured on.
        pad_id: the tokenizer's.
        side: of the texts.
        folder: a local one.

    Returns:
        The cosine to the float vectors of these texts: mean and lowest.

    Raises:
        ModelError: the encoder cannot be translated, or its vectors would be others.
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
    except Exception as error:  # A trace, OpenVINO and NNCF have no class of errors in common.
        raise ModelError(
            f"encode.dtype is int8, and OpenVINO cannot translate {type(tower.backbone).__name__}: {first_line(error)}"
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
            f"encode.dtype is int8, in which the vectors of {tokens.num_rows} texts have a mean cosine of {mean:.3f} "
            f"to those in float32, and {_LEAST_COSINE} is expected at least: this encoder cannot do with 8 bits; set "
            "encode.dtype=auto"
        )
    return {"mean": mean, "lowest": float(cosines.min())}


@contextmanager
def _in_silence() -> Iterator[None]:
    """Silence NNCF's progress bars and PyTorch's warnings about traces; the result is compared with the tower's."""
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _cosines(vectors: Tensor, exact: Tensor) -> Tensor:
    """Compute the cosine of each vector with its exact counterpart, without padding."""
    cosines = nn.functional.cosine_similarity(vectors, exact, dim=-1)
    return cosines[exact.any(dim=-1)]


def _graph(openvino: Any, tower: Tower, names: tuple[str, ...]) -> Any:
    """Convert a tower's encoder to OpenVINO's float32 graph, for texts of any number and length."""
    # Without padding the mask would not become a part of it.
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
