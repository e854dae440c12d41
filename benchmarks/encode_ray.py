"""Passages per second of encoding with Ray Data, and with a plain loop over the same parts and batches.

Both tokenise, encode and write the same parts with the same total number of CPUs. The plain loop is a single process
whose PyTorch uses all CPUs; Ray Data uses a pool of encoder actors, and tokenising tasks. Start-up does not count:
timing starts after the first file of the loop, and after a quarter of the files of Ray Data. With GPUs, Ray Data has an
encoder on each, and the plain loop, which tokenises with all CPUs, has a single encoder.

    python -m benchmarks.encode_ray --json encode_ray.json
    python -m benchmarks.encode_ray --gpus 1 --cpus 16 --shape bert-base --words 137 --passages 400000 \\
        --part-rows 2500 --without-loop
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
from benchmarks.shapes import SHAPES, save_checkpoint
from benchmarks.texts import make_texts
from benchmarks.timing import interleave, print_rates, steady_rate, write_report
from raydr.artefacts.embeddings import encode_texts, output_name
from raydr.artefacts.model import save_untrained
from raydr.data.corpus import Corpus
from raydr.data.embeddings import to_embedding_table
from raydr.data.tables import read_arrow, write_arrow
from raydr.distributed.arithmetic import Arithmetic, resolve_arithmetic
from raydr.distributed.cluster import RayConfig, connected
from raydr.distributed.ray_pool import RayPool
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import load_tokenizer
from raydr.models.encode_config import EncodeConfig
from raydr.models.inference import InferenceEncoder
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, write_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_500)
    parser.add_argument("--part-rows", type=int, default=500)
    parser.add_argument("--words", type=int, default=40, help="words of a passage, on average")
    parser.add_argument("--layers", type=int, default=3, help="of the packaged MiniLM")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape, in place of that")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-loop", action="store_true", help="Ray Data alone")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        connected(RayConfig(num_cpus=arguments.cpus, num_gpus=arguments.gpus, temp_dir=f"{scratch}/ray")),
    ):
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    # An encoder for each CPU; tokenising is a small share of the work, on the same CPUs. A GPU needs several CPUs.
    actors = arguments.gpus or arguments.cpus
    cpus, tokenizer_cpus = (1.0, 1.0) if arguments.gpus else (0.75, 0.25)
    settings = EncodeConfig(
        dtype=arguments.dtype, min_actors=actors, max_actors=actors, gpus_per_actor=min(1, arguments.gpus),
        cpus_per_actor=cpus, cpus_per_tokenizer=tokenizer_cpus,
    )  # fmt: skip
    config = ModelConfig(num_layers=arguments.layers)
    if arguments.shape:
        checkpoint = save_checkpoint(SHAPES[arguments.shape], "", scratch / "checkpoint")
        config = ModelConfig(checkpoint=checkpoint, passage=SideConfig(max_length=512))
    model = make(scratch / "model", "model", save_untrained, model=config, seed=0)
    corpus = make_corpus(scratch / "corpus", make_texts(arguments.passages, arguments.words), arguments.part_rows)
    arithmetic = resolve_arithmetic(settings, RayPool())

    def encode() -> Artifact:
        output = scratch / "ray-data"
        return make(output, "embeddings", encode_texts, model, corpus, settings=settings, arithmetic=arithmetic)

    def ray_data() -> float:
        # After these files the tokenising processes have started as well.
        skip = max(actors, arguments.passages // arguments.part_rows // 4)
        return steady_rate(Path(encode().folder.root), "part-*.arrow", num_rows, skip)

    def plain_loop() -> float:
        output = Folder(str(scratch / "plain"))
        shutil.rmtree(output.root, ignore_errors=True)
        loop(arithmetic, model, corpus, output, arguments.cpus)
        return steady_rate(Path(output.root), "part-*.arrow", num_rows)

    ways = {"ray data": ray_data} if arguments.without_loop else {"plain loop": plain_loop, "ray data": ray_data}
    figures = interleave(ways, arguments.repeats)
    parts = [part.name for part in (scratch / "ray-data").glob("part-*.arrow")]
    compared = "" if arguments.without_loop else f"; {num_same(scratch)} of {len(parts)} parts are the same bytes"
    print(
        f"{arguments.passages:,} passages of {arguments.words} words on average, "
        f"{arguments.shape or f'{arguments.layers} layers'}, {arithmetic.dtype}, {arguments.cpus} CPUs, "
        f"{arguments.gpus} GPUs, medians of {arguments.repeats} interleaved rounds{compared}"
    )
    print_rates(figures, "passages", next(iter(ways)))
    medians = {name: statistics.median(rates) for name, rates in figures.items()}
    reported = {**vars(arguments), "resolved_dtype": arithmetic.dtype}
    write_report(arguments.json, "encode_ray", reported, {"passages_per_second": figures, "medians": medians})


def loop(arithmetic: Arithmetic, model: Artifact, corpus: Artifact, output: Folder, num_threads: int) -> None:
    """Encode part after part in this process."""
    # With a GPU, all CPUs are free for tokenising.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if arithmetic.device == "cuda" else "false"
    tokenizer = load_tokenizer(model.folder.root, "passage")
    encoder = InferenceEncoder(
        model.folder.root, "passage", arithmetic.dtype, arithmetic.device, arithmetic.token_budget, num_threads
    )  # fmt: skip
    for number, table in enumerate(Corpus(corpus).parts()):
        tokens = tokenizer(table["title"].to_pylist(), table["text"].to_pylist())
        made = to_embedding_table(table["passage_id"].combine_chunks(), encoder.encode(tokens))

        def write(path: str, made: pa.Table = made) -> None:
            write_arrow(made, path)

        write_part(output, output_name(number), table.num_rows, write)


def num_same(scratch: Path) -> int:
    """Return the number of parts whose bytes are equal in both outputs."""
    return sum(
        part.read_bytes() == (scratch / "ray-data" / part.name).read_bytes()
        for part in (scratch / "plain").glob("part-*.arrow")
    )


def num_rows(part: Path) -> int:
    """Return the number of passages in a file."""
    return int(read_arrow(str(part)).num_rows)


if __name__ == "__main__":
    main()
