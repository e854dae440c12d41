"""The encoding core against sentence-transformers: passages a second, the same model and lengths, one process.

Every candidate tokenises and encodes the same texts. sentence-transformers runs with its default batch of 32 and sorts
by length too. ``raydr`` is raydr's default: bfloat16 where the processor has it.

    python -m benchmarks.encode --corpus corpus.jsonl.gz --json encode.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from benchmarks.texts import load_texts
from benchmarks.timing import interleave, print_rates, timed, write_report
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET, Batching
from raydr.models.inference import InferenceEncoder
from raydr.models.precision import resolve_dtype


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="BEIR corpus.jsonl[.gz]; made texts if left out")
    parser.add_argument("--passages", type=int, default=500)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--max-length", type=int, default=160)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--token-budget", type=int, default=0, help="raydr's default for the device if 0")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="also through torch.compile; half a minute to start")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = load_texts(arguments.corpus, arguments.passages)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run(arguments, texts, folder)


def run(arguments: argparse.Namespace, texts: list[str], folder: str) -> None:
    side = SideConfig(max_length=arguments.max_length)
    config = ModelConfig(num_layers=arguments.layers, query=side, passage=side)
    DualEncoder.from_config(config).save(folder, build_tokenizers(config))
    tokenizer = load_tokenizer(folder, "passage")
    num_tokens = tokenizer(None, texts).num_tokens
    chosen, reason = resolve_dtype("auto", arguments.device)

    budget = arguments.token_budget or TOKEN_BUDGET[torch.device(arguments.device).type]

    def rate(encode: Callable[[], object]) -> Callable[[], float]:
        encode()
        return lambda: len(texts) / timed(encode)

    def raydr(dtype: str, batching: Batching = "padded") -> Callable[[], object]:
        encoder = InferenceEncoder(folder, "passage", dtype, arguments.device, budget, batching=batching)
        return lambda: encoder.encode(tokenizer(None, texts))

    def sentence_transformers(dtype: torch.dtype) -> Callable[[], object]:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(folder, device=arguments.device, model_kwargs={"dtype": dtype})
        return lambda: model.encode(texts)

    candidates = {
        "sentence-transformers": rate(sentence_transformers(torch.float32)),
        "raydr float32": rate(raydr("float32")),
    }
    if chosen != "float32":
        candidates["sentence-transformers bf16"] = rate(sentence_transformers(torch.bfloat16))
        candidates["raydr (default)"] = rate(raydr(chosen))
        candidates["raydr packed"] = rate(raydr(chosen, "packed"))
        if arguments.compiled:
            candidates["raydr compiled"] = rate(raydr(chosen, "compiled"))
    figures = interleave(candidates, arguments.repeats)
    print(
        f"{len(texts):,} passages, {num_tokens / len(texts):.0f} tokens on average, {arguments.layers} layers, "
        f"{arguments.threads} threads on {arguments.device}; raydr's default here: {chosen} ({reason}); "
        f"medians of {arguments.repeats} interleaved rounds"
    )
    print_rates(figures, "passages", "sentence-transformers")
    write_report(arguments.json, "encode", vars(arguments), {"passages_per_second": figures, "num_tokens": num_tokens})


if __name__ == "__main__":
    main()
