"""Encoding through Ray Data against a plain loop over the same parts and batches: passages a second.

Both tokenise, encode and write the same parts with the same CPUs in all. The plain loop is one process whose torch has
all the CPUs; Ray Data has a pool of encoder actors and tokenising tasks beside them. Start-up is left out: the clock
of either starts when every encoder has finished its first part (that is read from the times of the files).

    python -m benchmarks.encode_ray --json encode_ray.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks.artefacts import make, make_corpus
from benchmarks.texts import make_texts
from benchmarks.timing import interleave, print_rates, steady_rate, write_report
from raydr.data.corpus import Corpus
from raydr.data.embeddings import to_embedding_table
from raydr.data.schema import read_arrow, write_arrow
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import load_tokenizer
from raydr.models.encode_config import EncodeConfig
from raydr.models.inference import InferenceEncoder
from raydr.runtime.cluster import RayConfig, connected
from raydr.stages.arithmetic import Arithmetic, resolve_arithmetic
from raydr.stages.encode import encode_texts, output_name
from raydr.stages.ray_pool import RayPool
from raydr.stages.train import save_untrained
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, write_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_500)
    parser.add_argument("--part-rows", type=int, default=500)
    parser.add_argument("--words", type=int, default=40, help="words of a passage, on average")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        connected(RayConfig(num_cpus=arguments.cpus, num_gpus=0, temp_dir=f"{scratch}/ray")),
    ):
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    # One encoder a CPU; tokenising is a small share of the work and shares these CPUs.
    actors = arguments.cpus
    settings = EncodeConfig(
        dtype=arguments.dtype, min_actors=actors, max_actors=actors, cpus_per_actor=0.75, cpus_per_tokenizer=0.25
    )
    model = make(scratch / "model", "model", save_untrained, model=ModelConfig(num_layers=arguments.layers), seed=0)
    corpus = make_corpus(scratch / "corpus", make_texts(arguments.passages, arguments.words), arguments.part_rows)
    arithmetic = resolve_arithmetic(settings, RayPool())

    def encode() -> Artifact:
        output, how = scratch / "ray-data", {"settings": settings, "arithmetic": arithmetic}
        return make(output, "embeddings", encode_texts, model, corpus, **how)

    first = encode()

    def ray_data() -> float:
        return steady_rate(Path(encode().folder.root), "part-*.arrow", num_rows, skip=actors)

    def plain_loop() -> float:
        output = Folder(str(scratch / "plain"))
        shutil.rmtree(output.root, ignore_errors=True)
        loop(arithmetic, model, corpus, output, arguments.cpus)
        return steady_rate(Path(output.root), "part-*.arrow", num_rows)

    figures = interleave({"plain loop": plain_loop, "ray data": ray_data}, arguments.repeats)
    same = sum(
        (scratch / "plain" / name).read_bytes() == (scratch / "ray-data" / name).read_bytes() for name in first.parts()
    )
    print(
        f"{arguments.passages:,} passages of {arguments.words} words on average, {arguments.layers} layers, "
        f"{arithmetic.dtype}, {arguments.cpus} CPUs, medians of {arguments.repeats} interleaved rounds; "
        f"{same} of {len(first.parts())} parts are the same bytes"
    )
    print_rates(figures, "passages", "plain loop")
    medians = {name: statistics.median(rates) for name, rates in figures.items()}
    reported = {**vars(arguments), "resolved_dtype": arithmetic.dtype}
    write_report(arguments.json, "encode_ray", reported, {"passages_per_second": figures, "medians": medians})


def loop(arithmetic: Arithmetic, model: Artifact, corpus: Artifact, output: Folder, num_threads: int) -> None:
    """Encode part after part in this process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_tokenizer(model.folder.root, "passage")
    encoder = InferenceEncoder(
        model.folder.root, "passage", arithmetic.dtype, "cpu", arithmetic.token_budget, num_threads
    )
    for number, table in enumerate(Corpus(corpus).parts()):
        tokens = tokenizer(table["title"].to_pylist(), table["text"].to_pylist())
        made = to_embedding_table(table["passage_id"].combine_chunks(), encoder.encode(tokens))

        def write(path: str, made: pa.Table = made) -> None:
            write_arrow(made, path)

        write_part(output, output_name(number), table.num_rows, write)


def num_rows(part: Path) -> int:
    """Passages in one file."""
    return int(read_arrow(str(part)).num_rows)


if __name__ == "__main__":
    main()
