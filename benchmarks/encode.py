"""Passages per second of raydr's encoder and of sentence-transformers: the same model in a single process.

All candidates tokenise and encode the same texts. sentence-transformers runs with its default batch of 32 and sorts by
length. ``raydr`` runs in its default type: bfloat16 if the processor supports it. The last column is the rate of
operations without padding, relative to that of a large matrix product in the same type (not for int8). ``raydr int8``
runs on processors that support int8. ``--theirs PYTHON`` adds sentence-transformers' OpenVINO int8 backend from a
separate environment, see benchmarks/openvino_backend.py.

    python -m benchmarks.encode --corpus corpus.jsonl.gz --json encode.json
    python -m benchmarks.encode --corpus corpus.jsonl.gz --theirs ENVIRONMENT/bin/python
    python -m benchmarks.encode --corpus corpus.jsonl.gz --shape bert-base --device cuda --passages 20000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from benchmarks.shapes import SHAPES, forward_flops, peak_flops, save_checkpoint
from benchmarks.texts import load_texts
from benchmarks.timing import interleave, print_rates, timed, write_report
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer, load_tower
from raydr.models.encode_config import NUM_CALIBRATING, TOKEN_BUDGET
from raydr.models.inference import InferenceEncoder
from raydr.models.int8 import missing_for_int8, quantize
from raydr.models.precision import resolve_dtype, torch_dtype


@dataclass(frozen=True)
class Candidate:
    """A way of encoding.

    Args:
        dtype: of the computation.
        encode: tokenises and encodes all texts.
    """

    dtype: str
    encode: Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="BEIR corpus.jsonl[.gz]; made texts if left out")
    parser.add_argument("--passages", type=int, default=500)
    parser.add_argument(
        "--shape", choices=list(SHAPES), default="minilm", help="of the encoder; its weights are random"
    )
    parser.add_argument("--layers", type=int, default=0, help="the shape's own if 0")
    parser.add_argument("--tokenizer", default=OFFLINE_CHECKPOINT, help="a checkpoint whose tokenizer is taken")
    parser.add_argument("--max-length", type=int, default=160)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--token-budget", type=int, default=0, help="raydr's default for the device if 0")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--theirs", default="", help="python of an environment with sentence-transformers[openvino]")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = load_texts(arguments.corpus, arguments.passages)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run(arguments, texts, Path(folder))


def run(arguments: argparse.Namespace, texts: list[str], folder: Path) -> None:
    shape = SHAPES[arguments.shape]
    shape = shape._replace(layers=arguments.layers or shape.layers)
    checkpoint = save_checkpoint(shape, arguments.tokenizer, folder / "checkpoint")
    side = SideConfig(max_length=arguments.max_length)
    config = ModelConfig(checkpoint=checkpoint, query=side, passage=side)
    model = str(folder / "model")
    DualEncoder.from_config(config).save(model, build_tokenizers(config))
    tokenizer = load_tokenizer(model, "passage")
    started = time.process_time()
    lengths = tokenizer(None, texts).lengths.tolist()
    tokenizing = len(texts) / (time.process_time() - started)
    chosen, reason = resolve_dtype("auto", arguments.device)
    candidates = make_candidates(arguments, texts, model, chosen)
    for candidate in candidates.values():
        candidate.encode()
    figures = interleave(
        {name: rate(candidate.encode, len(texts)) for name, candidate in candidates.items()}, arguments.repeats
    )
    print(
        f"{len(texts):,} passages, {sum(lengths) / len(texts):.0f} tokens on average, {arguments.shape} with "
        f"{shape.layers} layers, {arguments.threads} threads on {arguments.device}; raydr's default here: {chosen} "
        f"({reason}); medians of {arguments.repeats} interleaved rounds"
    )
    print(f"tokenising alone: {tokenizing:,.0f} passages/s a core")
    base = next(iter(candidates))
    print_rates(figures, "passages", base)
    flops = forward_flops(shape, lengths) / len(texts)
    dtypes = dict.fromkeys(candidate.dtype for candidate in candidates.values() if candidate.dtype != "int8")
    peaks = {dtype: peak_flops(torch_dtype(dtype), arguments.device) for dtype in dtypes}
    utilisation = {
        name: statistics.median(figures[name]) * flops / peaks[candidate.dtype]
        for name, candidate in candidates.items()
        if candidate.dtype in peaks
    }
    print(
        "one large matrix product: " + ", ".join(f"{dtype} {peak / 1e9:,.0f} GFLOP/s" for dtype, peak in peaks.items())
    )
    for name, share in utilisation.items():
        print(f"{name:28} {statistics.median(figures[name]) * flops / 1e9:10,.1f} GFLOP/s {share:8.1%} of it")
    write_report(
        arguments.json,
        "encode",
        vars(arguments),
        {
            "passages_per_second": figures,
            "tokenizing": tokenizing,
            "num_tokens": sum(lengths),
            "peaks": peaks,
            "utilisation": utilisation,
        },
    )


def make_candidates(arguments: argparse.Namespace, texts: list[str], model: str, chosen: str) -> dict[str, Candidate]:
    """Return the candidates by name; the first is the baseline."""
    candidates: dict[str, Candidate] = {}
    dtypes = list(dict.fromkeys(["float32", chosen]))
    has_theirs = find_spec("sentence_transformers") is not None
    if not has_theirs:
        print("sentence-transformers is not installed: compared with raydr's float32")
    for dtype in dtypes:
        if has_theirs:
            theirs = sentence_transformers(arguments, texts, model, dtype)
            candidates[f"sentence-transformers {dtype}"] = Candidate(dtype, theirs)
        candidates[f"raydr {dtype}"] = Candidate(dtype, raydr(arguments, texts, model, dtype))
    lacking = ("a device other than a CPU", "") if arguments.device != "cpu" else missing_for_int8()
    if lacking is None:
        candidates["raydr int8"] = Candidate("int8", raydr(arguments, texts, model, "int8"))
    else:
        print(f"without int8: {lacking[0]}")
    if arguments.theirs:
        candidates["sentence-transformers int8"] = Candidate("int8", their_int8(arguments, texts, model))
    return candidates


def raydr(arguments: argparse.Namespace, texts: list[str], model: str, dtype: str) -> Callable[[], object]:
    budget = arguments.token_budget or TOKEN_BUDGET[torch.device(arguments.device).type]
    tokenizer = load_tokenizer(model, "passage")
    quantized = ""
    if dtype == "int8":
        quantized = f"{model}-int8"
        Path(quantized).mkdir()
        tower = load_tower(model, "passage").ready("cpu", torch.float32)
        quantize(tower, tokenizer(None, texts[:NUM_CALIBRATING]), tokenizer.pad_id, "passage", quantized)
    encoder = InferenceEncoder(model, "passage", dtype, arguments.device, budget, quantized=quantized)
    return lambda: encoder.encode(tokenizer(None, texts))


def sentence_transformers(
    arguments: argparse.Namespace, texts: list[str], model: str, dtype: str
) -> Callable[[], object]:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(model, device=arguments.device, model_kwargs={"dtype": torch_dtype(dtype)})
    return lambda: theirs.encode(texts)


def their_int8(arguments: argparse.Namespace, texts: list[str], model: str) -> Callable[[], object]:
    """Start sentence-transformers' OpenVINO backend in a process that ends with this process."""
    file = Path(f"{model}-texts.json")
    file.write_text(json.dumps(texts), encoding="utf-8")
    script = Path(__file__).with_name("openvino_backend.py")
    process = subprocess.Popen(
        [arguments.theirs, str(script), model, str(file), str(arguments.threads)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=""),
    )  # fmt: skip
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None

    def answer() -> None:
        if not answers.readline():
            raise SystemExit(f"{arguments.theirs} {script} ended with exit status {process.wait()}")

    def encode() -> None:
        print("go", file=requests, flush=True)
        answer()

    answer()
    return encode


def rate(encode: Callable[[], object], num_texts: int) -> Callable[[], float]:
    return lambda: num_texts / timed(encode)


if __name__ == "__main__":
    main()
