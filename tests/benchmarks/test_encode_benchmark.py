from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from benchmarks import encode, shapes
from benchmarks.shapes import Shape, forward_flops, save_checkpoint
from raydr.models.int8 import missing_for_int8

ROOT = Path(__file__).parents[2]
SMALL = Shape(layers=2, width=16, heads=2, inner=24)


def test_the_arithmetic_is_what_pytorch_counts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(
        save_checkpoint(SMALL, str(tiny_checkpoint), tmp_path), attn_implementation="eager", add_pooling_layer=False
    )
    lengths = [5, 9]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in lengths:
            model(input_ids=torch.ones(1, length, dtype=torch.long))
    assert forward_flops(SMALL, lengths) == counter.get_total_flops()


@pytest.mark.parametrize("theirs", [True, False])
def test_the_benchmark_runs_where_only_torch_and_transformers_are(
    theirs: bool,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A dry run; without sentence-transformers everything is compared with raydr in float32."""
    monkeypatch.setitem(shapes.SHAPES, "minilm", SMALL)
    if not theirs:
        monkeypatch.setattr(encode, "find_spec", lambda name: None)
    report = tmp_path / "encode.json"
    options = ["--passages", "8", "--repeats", "1", "--tokenizer", str(tiny_checkpoint), "--json", str(report)]
    monkeypatch.setattr(sys, "argv", ["encode", *options])
    encode.main()
    figures = json.loads(report.read_text())["figures"]
    assert {f"raydr {dtype}" for dtype in figures["peaks"]} <= figures["passages_per_second"].keys()
    assert ("raydr int8" in figures["passages_per_second"]) == (missing_for_int8() is None)
    # Not below 1: on a busy processor the peak can be timed slower than the encoder.
    assert all(share > 0 for share in figures["utilisation"].values())
    assert ("× sentence-transformers float32" in capsys.readouterr().out) == theirs


def test_the_core_is_measured_without_ray_faiss_and_mlflow() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['ray', 'faiss', 'mlflow', 'sentence_transformers']))"
    code = f"{blocked}; import benchmarks.gpu.__main__"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
