"""From sizes and rates to seconds, memory, disk and money of each stage. Pure arithmetic; each formula is in words.

Seconds of a stage are its start-up and its work divided by what the workers that fit do together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raydr.config.run import RunConfig
from raydr.graph.forecast import StageEstimate
from raydr.indexing.backend import load_faiss
from raydr.indexing.factory import EXACT, make_index, resolve_factory
from raydr.ops.plan.rates import EncodingRates, RunRates, SearchRates
from raydr.stages.encoders import places_for_encoders
from raydr.stages.index import MOST_TRAIN_CPUS

#: Seconds that Ray needs for the workers of a stage, beside what they load themselves.
START_SECONDS = 3.0
#: Rounds of k-means in FAISS.
_KMEANS_ROUNDS = 10
#: Bytes of an id and of its offset in an Arrow file.
_ID_BYTES = 16


@dataclass(frozen=True)
class RunSizes:
    """How much there is.

    Args:
        num_passages: of the corpus, or of the one that is planned for.
        num_queries: of each split, by its name.
    """

    num_passages: int
    num_queries: Mapping[str, int]


def encoder_pool(config: RunConfig, capacity: Mapping[str, float], num_texts: int) -> tuple[int, int]:
    """How many encoders, and tokenising tasks beside them, a cluster runs at a time.

    Args:
        config: the run.
        capacity: CPUs and GPUs of the cluster; infinite if nobody knows.
        num_texts: no more tasks than texts.

    >>> from raydr.config.run import RunConfig
    >>> config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "x"}}, "encode": {"max_actors": 8}})
    >>> encoder_pool(config, {"CPU": 2, "GPU": 0}, 100), encoder_pool(config, {"CPU": 16, "GPU": 0}, 100)
    ((1, 2), (8, 16))
    """
    settings = config.encode
    encoders = max(1, int(min(settings.max_actors, places_for_encoders(settings, capacity))))
    left = (capacity["CPU"] - encoders * settings.cpus_per_actor) / settings.cpus_per_tokenizer
    return encoders, max(1, int(min(left + 1e-6, num_texts)))


def estimate_encoding(
    config: RunConfig, name: str, num_texts: int, rates: EncodingRates, capacity: Mapping[str, float], queries: bool
) -> StageEstimate:
    """Encoders and tokenising tasks work at the same time: what is slower counts, one of them or all the CPUs."""
    sample = rates.queries if queries else rates.passages
    encoders, tokenizers = encoder_pool(config, capacity, num_texts)
    by_encoders = encoders * rates.tokens_per_second / sample.padded_tokens
    by_tokenizers = tokenizers * rates.texts_per_second * rates.passages.mean_tokens / sample.mean_tokens
    # Parts are not divided, so the last ones may leave some encoders idle.
    num_parts = max(1, math.ceil(num_texts / config.data.part_rows))
    waves = math.ceil(num_parts / encoders) * encoders / num_parts if num_parts < 10 * encoders else 1.0
    settings = config.encode
    bounds = {"encoding": by_encoders / waves, "tokenising": by_tokenizers}
    if not settings.gpus_per_actor and config.plan.device is None:
        # An encoder computes with whole threads, also if it was given less than a CPU.
        threads = max(1, int(settings.cpus_per_actor))
        bounds["CPUs"] = capacity["CPU"] / (threads * encoders / by_encoders + tokenizers / by_tokenizers)
    slower = min(bounds, key=lambda name: bounds[name])
    seconds = num_texts / bounds[slower]
    noun = "queries" if queries else "passages"
    return StageEstimate(
        name=name,
        work=f"{num_texts:,} {noun} of {sample.mean_tokens:.0f} tokens",
        seconds=rates.load_seconds + START_SECONDS + seconds,
        cpus=encoders * settings.cpus_per_actor + min(tokenizers, encoders) * settings.cpus_per_tokenizer,
        gpus=encoders * settings.gpus_per_actor,
        worker_bytes=rates.peak_bytes,
        disk_bytes=int(num_texts * (2 * rates.dim * sample.mean_vectors + _ID_BYTES)),
        note=f"{encoders} x {rates.tokens_per_second / sample.padded_tokens:,.0f} {noun}/s; bound by {slower}",
    )


def estimate_training(config: RunConfig, name: str, sizes: RunSizes, rates: RunRates) -> StageEstimate:
    """Steps, the teacher's forward passes, detections and dev retrieval of all epochs.

    A forward pass without gradients costs what encoding the same texts does.
    """
    encoding, training = rates.encoding, rates.training
    train, data = config.train, config.data
    num_queries = sizes.num_queries[data.train_split]
    num_steps = max(1, num_queries // train.batch_size)
    workers = train.fewest_workers
    query, passage = encoding.queries.padded_tokens, encoding.passages.padded_tokens
    rate = encoding.tokens_per_second * threads_of_trainer(config)
    group = query + train.passages_per_query * passage
    networks = 2 if train.coteaching is not None else 1
    dev_queries = min(sizes.num_queries.get(data.dev_split, 0), train.dev.max_queries)
    dev = (dev_queries * (query + passage) + train.dev.random_passages * passage) / rate if dev_queries else 0.0
    # Teacher and detection begin after the loss's warm-up.
    warm_epochs = max(0, train.num_epochs - train.loss.num_warmup_epochs)
    num_detections = 0
    if train.pair_detection is not None:
        num_detections = min(1, warm_epochs) if train.pair_detection.repeat == "once" else warm_epochs
    sent = networks * gradient_bytes(encoding.num_learning, config)
    step_seconds = training.step_seconds * networks
    parts = {
        "steps": train.num_epochs * num_steps * step_seconds,
        # Gradients travel while the backward pass, two thirds of a step, makes the others.
        "network": train.num_epochs * num_steps * max(0.0, _send_seconds(config, sent) - step_seconds * 2 / 3),
        "teacher": warm_epochs * num_steps * train.batch_size * group / rate / train.loss.teacher_every
        if train.loss.needs_teacher
        else 0.0,
        "detection": num_detections * num_queries * (query + passage) / rate,
        "dev": train.num_epochs * dev,
    }
    total = sum(parts.values())
    shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items() if seconds)
    return StageEstimate(
        name=name,
        work=f"{num_queries:,} queries x {train.num_epochs} epochs",
        seconds=encoding.load_seconds + 2 * START_SECONDS + total,
        cpus=workers * train.cpus_per_worker,
        gpus=workers if train.use_gpu else 0,
        worker_bytes=training.peak_bytes,
        # The model, and a checkpoint of what learns with both moments of the optimiser and the best weights.
        disk_bytes=networks * 4 * (encoding.num_parameters + 4 * encoding.num_learning),
        network_bytes=int(train.num_epochs * num_steps * sent),
        note=f"{training.step_seconds:.2f} s a step; {shares}",
    )


def threads_of_trainer(config: RunConfig) -> float:
    """What all training workers do, as a multiple of an encoder, which computes with whole threads."""
    train = config.train
    if train.use_gpu or config.encode.gpus_per_actor:
        return train.fewest_workers
    return train.fewest_workers * train.cpus_per_worker / max(1, int(config.encode.cpus_per_actor))


def gradient_bytes(num_learning: int, config: RunConfig) -> float:
    """Bytes that each link between machines carries in a step: 2·(n−1)/n of the gradients of n workers, as a ring does.

    >>> from raydr.config.run import RunConfig
    >>> def of(plan, **train):
    ...     run = {"data": {"reader": {"name": "beir", "path": "x"}}, "train": train, "plan": plan}
    ...     return gradient_bytes(1000, RunConfig.parse(run))
    >>> of({}), of({}, num_workers=4), of({}, num_workers=4, gradients="bfloat16")
    (0.0, 6000.0, 3000.0)
    >>> of({"workers_per_machine": 4}, num_workers=4), of({"workers_per_machine": 4}, num_workers=8)
    (0.0, 7000.0)
    """
    workers = config.train.fewest_workers
    if workers <= config.plan.workers_per_machine:
        return 0.0
    return 2 * (workers - 1) / workers * num_learning * (2 if config.train.gradients == "bfloat16" else 4)


def network_warning(config: RunConfig, num_learning: int, step_seconds: float) -> str:
    """What to say where sending a step's gradients takes longer than its arithmetic; empty where it does not."""
    sent = gradient_bytes(num_learning, config)
    seconds = _send_seconds(config, sent)
    if seconds <= step_seconds:
        return ""
    halve = "" if config.train.gradients == "bfloat16" else "train.gradients: bfloat16 halves that; "
    return (
        f"the gradients of a step are {sent / 1e6:,.0f} MB over a network of {config.plan.network_gbits:g} Gbit/s, "
        f"{seconds:.2f} s, and its arithmetic takes {step_seconds:.2f} s: {config.train.fewest_workers} workers wait "
        f"for each other. {halve}machines with several GPUs (plan.workers_per_machine, train.node_labels) send less; "
        "larger batches send it less often"
    )


def _send_seconds(config: RunConfig, num_bytes: float) -> float:
    return num_bytes * 8 / (config.plan.network_gbits * 1e9)


def estimate_index(
    config: RunConfig, name: str, sizes: RunSizes, encoding: EncodingRates, rates: SearchRates, cpus: float
) -> StageEstimate:
    """k-means on the sample, the nearest cell of every vector, and writing; as many shards at a time as fit."""
    settings, dim = config.index, encoding.dim
    rows = num_vectors(sizes, encoding)
    factory, size, cells = _index_of(config, rows, dim)
    threads, trainers = settings.cpus_per_task, settings.train_cpus or int(min(MOST_TRAIN_CPUS, max(1, cpus)))
    num_shards = max(1, math.ceil(rows / settings.shard_rows))
    at_once = max(1, int(min(num_shards, cpus / threads)))
    train = min(rows, settings.train_rows) * cells * dim * _KMEANS_ROUNDS / (rates.products_per_second * trainers)
    assign = rows * cells * dim / (rates.products_per_second * threads * at_once)
    fill = rows * dim * 4 / (rates.fill_bytes_per_second * at_once)
    shard_rows = min(rows, settings.shard_rows)
    return StageEstimate(
        name=name,
        work=_counted(sizes, rows) + f" in {num_shards} shards",
        seconds=START_SECONDS + train + assign + fill,
        cpus=at_once * threads,
        gpus=0,
        worker_bytes=int(shard_rows * size + config.data.part_rows * dim * 4),
        disk_bytes=int(rows * size + sizes.num_passages * (_ID_BYTES + 8)),
        note=factory,
    )


def estimate_search(
    config: RunConfig,
    name: str,
    sizes: RunSizes,
    split: str,
    encoding: EncodingRates,
    rates: SearchRates,
    cpus: float,
) -> StageEstimate:
    """Products of each query's vectors with those that are looked at, by all CPUs; a shard each if their number is
    open."""
    settings, dim = config.index, encoding.dim
    rows = num_vectors(sizes, encoding)
    _, size, cells = _index_of(config, rows, dim)
    looked_at = (
        rows * min(1.0, config.search.nprobe / cells) + cells if cells else rows
    ) * encoding.queries.mean_vectors
    num_queries = sizes.num_queries[split]
    num_shards = max(1, math.ceil(rows / settings.shard_rows))
    actors = min(num_shards, config.search.max_actors or num_shards)
    if not math.isinf(cpus):
        actors = max(1, min(actors, int(cpus / (config.search.cpus_per_actor or 1))))
    threads = config.search.cpus_per_actor or (1 if math.isinf(cpus) else None)
    held = min(cpus, actors * threads) if threads else cpus
    return StageEstimate(
        name=name,
        work=f"{num_queries:,} queries x {looked_at:,.0f} vectors",
        seconds=START_SECONDS + num_queries * looked_at * dim / (rates.products_per_second * held),
        cpus=held,
        gpus=0,
        worker_bytes=int(min(rows, math.ceil(num_shards / actors) * settings.shard_rows) * size),
        disk_bytes=num_queries * config.search.top_k * 20,
    )


def num_vectors(sizes: RunSizes, encoding: EncodingRates) -> int:
    """Vectors of all passages."""
    return round(sizes.num_passages * encoding.passages.mean_vectors)


def _counted(sizes: RunSizes, rows: int) -> str:
    several = f" of {rows:,} vectors" if rows != sizes.num_passages else ""
    return f"{sizes.num_passages:,} passages{several}"


def _index_of(config: RunConfig, rows: int, dim: int) -> tuple[str, float, int]:
    """The factory string of an index, bytes of a vector in it, and the number of its cells (0 if it has none)."""
    score = config.model.score
    factory = resolve_factory(config.index, rows, dim, score)[0]
    if not score.passage_vectors.several:
        return factory, *index_bytes(factory, dim)
    # Vectors are scored exactly from half precision; another kind of index is beside them.
    if factory in EXACT:
        return factory, 2.0 * dim, 0
    size, cells = index_bytes(factory, dim)
    return factory, size if config.index.vectors == "codes" else size + 2.0 * dim, cells


def index_bytes(factory: str, dim: int) -> tuple[float, int]:
    """Bytes of a vector in an index, and the number of its cells (0 if it has none).

    >>> index_bytes("Flat", 768), index_bytes("IVF1024,SQfp16", 768), index_bytes("IVF64,PQ32", 768)
    ((3072.0, 0), (1544.0, 1024), (40.0, 64))
    """
    faiss = load_faiss()
    whole = make_index(factory, dim)
    # A new name: `whole` owns the object behind it.
    index = faiss.downcast_index(whole)
    if isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    refined = 0.0
    if isinstance(index, faiss.IndexRefine):
        refined = float(faiss.downcast_index(index.refine_index).sa_code_size())
        index = faiss.downcast_index(index.base_index)
    if isinstance(index, faiss.IndexIVF):
        return float(index.code_size) + 8 + refined, int(index.nlist)
    if isinstance(index, faiss.IndexHNSW):
        # Neighbours: 2 M on the ground, M on each level above, of which there is 1 / (M - 1) a vector.
        neighbours = float(index.hnsw.nb_neighbors(0))
        return float(faiss.downcast_index(index.storage).sa_code_size()) + 4 * neighbours * 1.1 + refined, 0
    return float(index.sa_code_size()) + refined, 0
