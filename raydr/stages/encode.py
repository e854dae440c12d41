"""Encode passages and queries with Ray Data: tokenising tasks feed a pool of encoder actors.

The unit of work is a part of the corpus (or of a split's queries): one task tokenises it, one actor encodes it
and writes one file. Which worker does it changes nothing, so an interrupted encoding goes on where it was and
ends with the same bytes.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raydr.config.run import RunConfig
from raydr.errors import ConfigError, ModelError
from raydr.models.config import Dtype, Side
from raydr.models.encode_config import Batching, EncodeConfig
from raydr.runtime.capacity import describe_capacity
from raydr.runtime.console import counted, progress_bar, say
from raydr.stages.data_context import data_context
from raydr.stages.failures import worker_errors
from raydr.stages.resources import cluster_capacity
from raydr.stages.tasks import fetch
from raydr.store.artifact import Artifact, Building, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part

if TYPE_CHECKING:
    from raydr.data.growing_embeddings import GrowingEmbeddings

#: ``module:callable`` that makes the tokenizer from (model folder, side).
TOKENIZER = "raydr.models.dual_encoder:load_tokenizer"
#: ``module:callable`` that makes the encoder, as :class:`raydr.models.inference.InferenceEncoder` does.
ENCODER = "raydr.models.inference:InferenceEncoder"


@dataclass(frozen=True)
class Job:
    """What every worker of one encoding knows; small and picklable."""

    model: Folder
    model_fingerprint: str
    #: The corpus or data set.
    source: Folder
    source_kind: Literal["corpus", "dataset"]
    source_fingerprint: str
    #: Names of the parts to encode, in order; output part i comes from part i.
    parts: tuple[str, ...]
    output: Folder
    side: Side
    dtype: str
    device: str
    token_budget: int
    num_threads: int
    batching: Batching = "padded"
    tokenizer: str = TOKENIZER
    encoder: str = ENCODER

    def load_part(self, part: int) -> Any:
        """The table of one input part, memory-mapped."""
        from raydr.data.schema import read_arrow

        return read_arrow(_open(self.source, self.source_kind, self.source_fingerprint).local(self.parts[part]))


@functools.lru_cache(maxsize=4)
def _open(folder: Folder, kind: str, fingerprint: str) -> Artifact:
    return Artifact.open(folder, kind)


@functools.lru_cache(maxsize=2)
def _load_tokenizer(factory: str, model: Folder, fingerprint: str, side: Side) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _resolve(factory)(model.localize_all(), side)


def _resolve(factory: str) -> Any:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)


def output_name(part: int) -> str:
    """
    >>> output_name(3)
    'part-00003.arrow'
    """
    return f"part-{part:05d}.arrow"


def tokenize_part(batch: dict[str, Any], job: Job) -> dict[str, Any]:
    """The part named in the batch as one row of flat token arrays."""
    part = int(batch["part"][0])
    table = job.load_part(part)
    tokenizer = _load_tokenizer(job.tokenizer, job.model, job.model_fingerprint, job.side)
    titles = table.column("title").to_pylist() if job.side == "passage" else None
    tokens = tokenizer(titles, table.column("text").to_pylist())
    return {"part": batch["part"], **tokens.to_arrow()}


class EncodeParts:
    """An actor that holds the encoder; every call encodes one part and writes it."""

    def __init__(self, job: Job) -> None:
        require_device(job.device)
        self.job = job
        model = job.model.localize_all()
        self.encoder = _resolve(job.encoder)(
            model, job.side, job.dtype, job.device, job.token_budget, job.num_threads, job.batching
        )
        #: When the last part was finished.
        self.free_since: float | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        from raydr.data.embeddings import to_embedding_table
        from raydr.data.schema import write_arrow
        from raydr.models.tokens import Tokens

        part = int(batch["part"][0])
        started = time.perf_counter()
        tokens = Tokens.from_arrow(batch)
        ids = self.job.load_part(part).column(0).combine_chunks()
        begun = time.perf_counter()
        vectors = self.encoder.encode(tokens)
        encoding = time.perf_counter() - begun
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise ModelError(
                f"{self.job.parts[part]} of {self.job.source}: the vector of {ids[row].as_py()!r} (row {row}) is not "
                f"finite, and so are {int((~finite).sum())} of {len(finite)}; expected numbers within ±65504. The "
                f"model at {self.job.model} is broken, or its scores overflow float16: try encode.dtype=float32 or "
                "similarity cosine"
            )
        table = to_embedding_table(ids, vectors)
        name = output_name(part)
        record = write_part(self.job.output, name, len(ids), lambda path: write_arrow(table, path))
        record_part(self.job.output, name, record)
        waited = started - self.free_since if self.free_since is not None else 0.0
        self.free_since = time.perf_counter()
        return {
            "part": [part],
            **{key: [value] for key, value in record.items()},
            "tokens": [tokens.num_tokens],
            "truncated": [tokens.num_truncated],
            "encoding": [encoding],
            "other": [self.free_since - started - encoding],
            "waited": [waited],
        }


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


def encode_passages(
    config: RunConfig,
    model: Folder,
    corpus: Folder,
    output: Folder,
    overwrite: bool = False,
    *,
    tokenizer: str = TOKENIZER,
    encoder: str = ENCODER,
    growing: GrowingEmbeddings | None = None,
) -> Artifact:
    """Encode every passage of a corpus.

    Args:
        model: A model saved by raydr.
        output: Where the ``embeddings`` artefact goes.
        growing: told of every finished part, for those who read them meanwhile.

    Raises:
        ConfigError: the cluster cannot hold one encoder and one tokenising task.
        ModelError: a vector is not finite, or a worker cannot do what was resolved.
    """
    return _encode(
        config, model, corpus, "corpus", "passages", "passage", {}, output, overwrite, tokenizer, encoder,
        growing,
    )  # fmt: skip


def encode_queries(
    config: RunConfig,
    model: Folder,
    dataset: Folder,
    split: str,
    output: Folder,
    overwrite: bool = False,
    *,
    tokenizer: str = TOKENIZER,
    encoder: str = ENCODER,
) -> Artifact:
    """Encode the queries of one split; otherwise like :func:`encode_passages`."""
    return _encode(
        config, model, dataset, "dataset", f"queries/{split}", "query", {"split": split}, output, overwrite, tokenizer,
        encoder, None,
    )  # fmt: skip


def _encode(
    config: RunConfig,
    model: Folder,
    source: Folder,
    source_kind: Literal["corpus", "dataset"],
    under: str,
    side: Side,
    of: dict[str, Any],
    output: Folder,
    overwrite: bool,
    tokenizer: str,
    encoder: str,
    growing: GrowingEmbeddings | None,
) -> Artifact:
    model_fingerprint = Artifact.open(model, "model").fingerprint
    texts = Artifact.open(source, source_kind)
    parts = texts.parts(under)
    if not parts:
        raise ConfigError(
            f"the {source_kind} at {source} has no {under}; it has "
            + ", ".join(sorted({name.rpartition("/")[0] for name in texts.parts()}))
        )
    settings = config.encode
    device = choose_device(settings)
    num_actors = plan_actors(settings)
    dtype, reason = encoder_dtype(settings, device)
    token_budget = settings.batch_tokens(device)
    batching = settings.fingerprint_settings(include={"batching"})
    identity = Identity(
        kind="embeddings",
        config={"side": side, **of, "dtype": dtype, "token_budget": token_budget, "encoder": encoder, **batching},
        inputs={"model": model_fingerprint, source_kind: texts.fingerprint},
    )
    with begin(output, identity, overwrite) as building:
        if isinstance(building, Artifact):
            say(f"encode: the embeddings at {output} are complete and of the same model and texts: reused")
            return building
        say(f"encode: dtype {dtype} on {device} ({reason}), batches of {token_budget:,} tokens")
        job = Job(
            model=model, model_fingerprint=model_fingerprint, source=source, source_kind=source_kind,
            source_fingerprint=texts.fingerprint, parts=tuple(parts), output=output, side=side, dtype=dtype,
            device=device, token_budget=token_budget, num_threads=max(1, int(settings.cpus_per_actor)),
            batching=settings.batching, tokenizer=tokenizer, encoder=encoder,
        )  # fmt: skip
        rows = [texts.manifest.parts[name].rows for name in parts]
        if growing is not None:
            names = (output_name(part) for part in range(len(rows)))
            growing.begin(output, identity, dict(zip(names, rows, strict=True)), building.done)
        with worker_errors():
            _run(job, building, rows, settings, num_actors, growing)
        info = {
            "dim": _dim(output),
            "num_rows": sum(rows),
            "side": side,
            "dtype": dtype,
            "dtype_reason": reason,
            "device": device,
        }
        return building.finish(info, run_config=config.model_dump(mode="json"))


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


def plan_actors(settings: EncodeConfig, verb: str = "encode") -> tuple[int, int]:
    """How many encoder actors to start with and at most.

    More than ``min_actors`` start only while there is room, one tokenising task beside them included: Ray Data sees to
    that as nodes come and go. So the most is not cut to what fits now, or a node that joins later would stay idle.

    Args:
        settings: what was asked for.
        verb: named in the message about it.

    Raises:
        ConfigError: ``min_actors`` and a tokenising task do not fit.
    """
    capacity = cluster_capacity()
    fit = _fitting_actors(settings, capacity)
    lowest = f"{settings.min_actors} to " if settings.min_actors < settings.max_actors else ""
    say(
        f"{verb}: {lowest}{counted(settings.max_actors, 'encoder')} of {settings.cpus_per_actor:g} CPUs and "
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


def encoder_dtype(settings: EncodeConfig, device: str) -> tuple[str, str]:
    """The arithmetic and its reason, resolved where the encoders will run: the driver may be another machine."""
    import ray

    def resolve(dtype: Dtype, device: str) -> tuple[str, str]:
        from raydr.models.precision import resolve_dtype

        require_device(device)
        return resolve_dtype(dtype, device)

    task = ray.remote(num_cpus=settings.cpus_per_actor, num_gpus=settings.gpus_per_actor)(resolve)
    resolved: tuple[str, str] = fetch(task.remote(settings.dtype, device))
    return resolved


def _run(
    job: Job,
    building: Building,
    rows: list[int],
    settings: EncodeConfig,
    num_actors: tuple[int, int],
    growing: GrowingEmbeddings | None,
) -> None:
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    todo = [part for part in range(len(job.parts)) if output_name(part) not in building.done]
    if len(todo) < len(rows):
        say(f"encode: {len(rows) - len(todo)} of {len(rows)} parts are there already, {len(todo)} to do")
    if not todo:
        return
    fewest, most = (min(count, len(todo)) for count in num_actors)
    unit = "passages" if job.side == "passage" else "queries"
    tokens = truncated = 0
    spent = dict.fromkeys(("encoding", "other", "waited"), 0.0)
    started = time.perf_counter()
    with (
        DataContext.current(data_context()),
        progress_bar(f"encode {unit}", total=sum(rows[part] for part in todo), unit=unit) as bar,
    ):
        records = (
            ray.data.from_items([{"part": part} for part in todo], override_num_blocks=len(todo))
            .map_batches(
                tokenize_part, batch_size=1, batch_format="numpy", fn_kwargs={"job": job},
                num_cpus=settings.cpus_per_tokenizer,
            )
            .map_batches(
                EncodeParts, batch_size=1, batch_format="numpy", fn_constructor_kwargs={"job": job},
                compute=ActorPoolStrategy(min_size=fewest, max_size=most),
                num_cpus=settings.cpus_per_actor, num_gpus=settings.gpus_per_actor,
            )
        )  # fmt: skip
        for record in records.iter_rows():
            # The worker has recorded the part on disk already.
            name, part = output_name(int(record["part"])), _part(record)
            building.done[name] = part
            if growing is not None:
                growing.add(name, part)
            tokens += int(record["tokens"])
            truncated += int(record["truncated"])
            spent = {what: seconds + float(record[what]) for what, seconds in spent.items()}
            bar.advance(int(record["rows"]))
    missing = [job.parts[part] for part in todo if output_name(part) not in building.done]
    if missing:
        raise ModelError(f"encoding ended without {len(missing)} parts, the first is {missing[0]}: run it again")
    seconds = time.perf_counter() - started
    encoded = sum(rows[part] for part in todo)
    say(
        f"encode: {encoded:,} {unit}, {tokens:,} tokens in {seconds:.1f} s ({encoded / seconds:,.0f} {unit}/s with "
        f"start-up); {truncated:,} were cut at the maximum length; {describe_spent(**spent)}"
    )


def describe_spent(encoding: float, other: float, waited: float) -> str:
    """What the encoders did with their time, from the start of their first part to the end of their last.

    >>> describe_spent(encoding=90, other=4, waited=6)
    'the encoders encoded for 90 % of their time, read and wrote for 4 %, and waited for texts for 6 %'
    """
    total = encoding + other + waited
    shares = [f"{seconds / total * 100:.0f} %" for seconds in (encoding, other, waited)]
    return (
        f"the encoders encoded for {shares[0]} of their time, read and wrote for {shares[1]}, and waited for texts for "
        f"{shares[2]}"
    )


def _part(record: dict[str, Any]) -> Part:
    return Part(rows=int(record["rows"]), bytes=int(record["bytes"]), checksum=str(record["checksum"]))


def _dim(output: Folder) -> int:
    from raydr.data.embeddings import dim_of
    from raydr.data.schema import read_arrow

    return dim_of(read_arrow(output.localize(output_name(0))))
