"""Estimates of seconds, memory and disk of each node, computed from sizes and measured rates.

Seconds of a stage are its start-up plus its work divided by the joint rate of the workers that fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from raydr.artefacts.bm25 import SHARD_ROWS, shard_memory
from raydr.artefacts.cross_fitting import MARGINS
from raydr.artefacts.declaration import Node
from raydr.artefacts.index import MOST_TRAIN_CPUS
from raydr.artefacts.margins import POOL_SIZE
from raydr.artefacts.ranker_scores import KIND as RANKER_SCORES
from raydr.config.run import RunConfig
from raydr.distributed.arithmetic import places_for_encoders
from raydr.indexing.build import build_memory, index_bytes
from raydr.indexing.faiss_backend import EXACT, resolve_factory
from raydr.models.config import ModelConfig
from raydr.ops.plan.trials import Rates, Reading, Trials
from raydr.pipeline.forecast import StageEstimate
from raydr.training.training import Training

#: Seconds in which Ray starts the workers of a stage, without loading a model.
START_SECONDS = 3.0
#: Rounds of k-means in FAISS; bytes of an id and its offset in an Arrow file; bytes of a scored pair or run row.
_KMEANS_ROUNDS, _ID_BYTES, _PAIR_BYTES = 10, 16, 20
#: Time of a training step in forward passes: the backward pass costs two.
_PASSES = 3


def is_own_ranker(node: Node) -> bool:
    """Return whether a node is the config's ranker; judges use other cross-encoders."""
    return node.kind == "cross_encoder" and node.arguments.get("predicts", "log_odds") == "log_odds"


@dataclass(frozen=True)
class Estimator:
    """Estimator of the nodes of a run.

    Args:
        config: config of the run.
        num_passages: number of passages of the corpus, or of the larger corpus to plan for.
        num_queries: by split.
        capacity: CPUs and GPUs of the cluster.
        rates: measured rates of one worker.
    """

    config: RunConfig
    num_passages: int
    num_queries: Mapping[str, int]
    capacity: Mapping[str, float]
    rates: Trials

    def __call__(self, node: Node) -> StageEstimate | None:
        """Estimate time, memory and disk of a node; return None for kinds that are not planned."""
        model = node.inputs.get("model", node)
        estimate: Callable[[Node], StageEstimate] | None = None
        if node.kind == "model" and "training" in node.arguments:
            estimate = self._training
        elif is_own_ranker(node) and "workers" in node.arguments:
            estimate = self._ranker_training
        elif node.kind in ("run", RANKER_SCORES) and is_own_ranker(model):
            estimate = self._pairs
        elif node.kind == MARGINS or (node.kind == "embeddings" and "model" in node.inputs):
            estimate = self._encoding
        elif node.kind == "bm25":
            estimate = self._bm25
        elif node.kind == "index":
            estimate = self._index
        elif node.kind == "run" and "index" in node.inputs:
            estimate = self._search
        return None if estimate is None else estimate(node)

    def _model(self, node: Node) -> ModelConfig:
        """Return the retriever of a node: of the run, of its folds, or the guide."""
        for source in (node, *node.inputs.values()):
            if "training" in source.arguments:
                return cast(ModelConfig, source.arguments["training"].model)
            if isinstance(source.arguments.get("model"), ModelConfig):
                return cast(ModelConfig, source.arguments["model"])
        return self.config.model

    def _reading(self, node: Node, num_texts: int, model: Rates, text: Reading, text_bytes: float) -> StageEstimate:
        """Estimate the encoding of texts: tokenising overlaps it, so the slower of encoders and all CPUs counts."""
        settings, cpus = self.config.encode, self.capacity["CPU"]
        encoders = max(1, int(min(settings.max_actors, places_for_encoders(settings, self.capacity))))
        # An encoder without a GPU computes with at least one whole thread, even if it reserves less than a CPU.
        threads = 0 if settings.gpus_per_actor else max(1, int(settings.cpus_per_actor))
        text_seconds = max(text.encode / encoders, (text.tokenize + threads * text.encode) / cpus)
        seconds = model.load_seconds + START_SECONDS + num_texts * text_seconds
        cpus = min(cpus, encoders * (settings.cpus_per_actor + settings.cpus_per_tokenizer))
        gpus = encoders * settings.gpus_per_actor
        return _stage(node, seconds, cpus, gpus, model.peak_bytes, num_texts * text_bytes)

    def _encoding(self, node: Node) -> StageEstimate:
        model, split = self.rates.retriever(self._model(node)), node.arguments.get("split")
        text = model.texts["passage" if not split or node.kind == MARGINS else "query"]
        num_texts = self.num_queries[split] if split else self.num_passages
        if node.kind == MARGINS:
            # The passages of the pairs, and the pools from which random passages are drawn.
            num_texts += min(num_texts, self.config.cross_fit.num_folds * POOL_SIZE)
        return self._reading(node, num_texts, model, text, 2 * model.dim * text.vectors + _ID_BYTES)

    def _pairs(self, node: Node) -> StageEstimate:
        """Estimate the ranker's scoring of the candidates of training queries, or of the top of a run."""
        negatives, num_pairs = self.config.negatives, self.num_queries[node.arguments["split"]]
        if node.kind == RANKER_SCORES:
            num_pairs *= 1 + (self.config.train.num_hard_negatives if negatives is None else negatives.depth)
        else:
            num_pairs *= min(node.arguments["depth"], self.config.search.top_k)
        model = self.rates.ranker()
        return self._reading(node, num_pairs, model, model.texts["pair"], _PAIR_BYTES)

    def _learning(
        self, node: Node, seconds: float, model: Rates, peak_bytes: int, networks: int = 1, note: str = ""
    ) -> StageEstimate:
        """Estimate a training; its disk holds the model, and learning weights with both moments and the best copy."""
        train, seconds = self.config.train, seconds + model.load_seconds + 2 * START_SECONDS
        cpus, gpus = train.fewest_workers * train.cpus_per_worker, float(train.fewest_workers * train.use_gpu)
        disk_bytes = networks * 4 * (model.num_parameters + 4 * model.num_learning)
        return _stage(node, seconds, cpus, gpus, peak_bytes, disk_bytes, note)

    def _training(self, node: Node) -> StageEstimate:
        """Estimate a retriever's training: steps, and forward passes of teacher, detections and dev retrieval."""
        training: Training = node.arguments["training"]
        train, settings = training.train, self._model(node)
        model, step = self.rates.retriever(settings), self.rates.steps(settings, train)
        num_queries, folds = self.num_queries[training.train_split], self.config.cross_fit.num_folds
        if "cross-fit" in node.label:
            num_queries = num_queries * (folds - 1) // folds
        steps = train.num_epochs * max(1, num_queries // train.batch_size)
        networks = 2 if train.coteaching is not None else 1
        # Forward pass of a text by all workers: an encoder's time, scaled by the measured step over its prediction.
        query, passage = (model.texts[side].encode for side in ("query", "passage"))
        slower = step.seconds / _PASSES / (train.batch_size * (query + train.passages_per_query * passage))
        query, passage = slower * query, slower * passage
        # Teacher and detection begin after the loss's warm-up.
        taught = max(0, train.num_epochs - train.loss.num_warmup_epochs)
        seconds = steps * networks * step.seconds
        if train.loss.needs_teacher:
            seconds += steps * taught / train.num_epochs / train.loss.teacher_every * step.seconds / _PASSES
        # Cross-fitted margins have their own stage.
        if train.detection is not None and train.detection.margins == "model":
            times = min(1, taught) if train.detection.repeat == "once" else taught
            seconds += times * num_queries * (query + passage)
        if dev := min(self.num_queries.get(training.dev_split, 0), train.dev.max_queries):
            seconds += train.num_epochs * (dev * (query + passage) + train.dev.random_passages * passage)
        # Gradients travel in a ring while the backward pass computes further gradients.
        workers, plan, note = train.fewest_workers, self.config.plan, ""
        if workers > plan.workers_per_machine:
            num_bytes = networks * model.num_learning * (2 if train.gradients == "bfloat16" else 4)
            sending = 2 * (workers - 1) / workers * num_bytes * 8 / (plan.network_gbits * 1e9)
            seconds += (waiting := steps * max(0.0, sending - networks * step.seconds * (1 - 1 / _PASSES)))
            if waiting > 0.1 * seconds:
                note = f"{waiting / seconds:.0%} of it waits for the network (plan.network_gbits)"
        return self._learning(node, seconds, model, step.peak_bytes, networks, note)

    def _ranker_training(self, node: Node) -> StageEstimate:
        """Estimate the ranker's training: steps, and dev lists of each epoch."""
        settings, dev = node.arguments["settings"], getattr(node.arguments["settings"], "dev", None)
        model = self.rates.ranker()
        # All workers together are as fast as one encoder with their threads; lists are padded to the longest pair.
        train, encode, pair = self.config.train, self.config.encode, model.texts["pair"]
        workers = float(train.fewest_workers)
        if not (train.use_gpu or encode.gpus_per_actor):
            workers *= train.cpus_per_worker / max(1, int(encode.cpus_per_actor))
        pairs = _PASSES * self.num_queries[node.arguments["split"]] * settings.passages_per_query * pair.longest
        if node.arguments["dev"] and dev is not None:
            pairs += min(dev.max_queries, self.num_queries.get(node.arguments["dev"], 0)) * dev.depth
        seconds = settings.num_epochs * pairs * pair.encode / workers
        return self._learning(node, seconds, model, 0)

    def _bm25(self, node: Node) -> StageEstimate:
        """Estimate BM25: all CPUs cut passages into terms, and as many shards as fit are indexed at a time."""
        rates, rows, cpus = self.rates.terms(), self.num_passages, self.capacity["CPU"]
        num_shards = math.ceil(rows / SHARD_ROWS)
        at_a_time = min(num_shards, max(1.0, cpus))
        seconds = START_SECONDS + rows * (rates.cut_seconds / cpus + rates.index_seconds / at_a_time)
        worker_bytes = shard_memory(int(min(rows, SHARD_ROWS) * rates.term_bytes))
        note = f"{num_shards:,} shards" if num_shards > 1 else ""
        return _stage(node, seconds, cpus, 0, worker_bytes, rows * rates.term_bytes, note)

    def _index_of(self, node: Node) -> tuple[str, int, Rates, float, int]:
        """Return an index's factory string, its number of vectors, their model, bytes of a vector, and cells or 0."""
        model, score = self.rates.retriever(self._model(node)), self.config.model.score
        rows = round(self.num_passages * model.texts["passage"].vectors)
        factory = resolve_factory(self.config.index, rows, model.dim, score)[0]
        if not score.passage_vectors.several:
            return factory, rows, model, *index_bytes(factory, model.dim)
        # Vectors are scored exactly from half precision; an approximate index is stored in addition.
        size, cells = (0.0, 0) if factory in EXACT else index_bytes(factory, model.dim)
        exact = 0.0 if cells and self.config.index.vectors == "codes" else 2.0 * model.dim
        return factory, rows, model, size + exact, cells

    def _index(self, node: Node) -> StageEstimate:
        """Estimate an index: k-means on a sample, assignment to cells, writing; shards that fit run together."""
        settings, cpus = self.config.index, self.capacity["CPU"]
        factory, rows, model, size, cells = self._index_of(node.inputs["embeddings"])
        rates, num_shards = self.rates.search(model.dim), max(1, math.ceil(rows / settings.shard_rows))
        used_cpus = max(1, int(min(num_shards, cpus / settings.cpus_per_task))) * settings.cpus_per_task
        threads = settings.train_cpus or int(min(MOST_TRAIN_CPUS, max(1, cpus)))
        products = cells * model.dim / rates.products
        train = min(rows, settings.train_rows) * products * _KMEANS_ROUNDS / threads
        fill = rows * (products / used_cpus + model.dim * 4 / rates.fill_bytes * settings.cpus_per_task / used_cpus)
        worker_bytes = build_memory(min(rows, settings.shard_rows), size)
        disk_bytes = rows * size + self.num_passages * (_ID_BYTES + 8)
        note = factory + (f" in {num_shards:,} shards" if num_shards > 1 else "")
        return _stage(node, START_SECONDS + train + fill, used_cpus, 0, worker_bytes, disk_bytes, note)

    def _search(self, node: Node) -> StageEstimate:
        """Estimate a search: products of query vectors with the compared vectors, by the CPUs of the actors."""
        settings, cpus, arguments = self.config.search, self.capacity["CPU"], node.inputs["queries"].arguments
        _, rows, model, size, cells = self._index_of(node.inputs["queries"])
        compared = rows * min(1.0, settings.nprobe / cells) + cells if cells else rows
        shard_rows, num_queries = self.config.index.shard_rows, self.num_queries[arguments["split"]]
        num_shards, cpus_per_actor = max(1, math.ceil(rows / shard_rows)), settings.cpus_per_actor or 1
        actors = max(1, min(num_shards, settings.max_actors or num_shards, int(cpus / cpus_per_actor)))
        used_cpus = min(cpus, actors * settings.cpus_per_actor) if settings.cpus_per_actor else cpus
        products = num_queries * model.texts["query"].vectors * compared * model.dim
        seconds = START_SECONDS + products / (self.rates.search(model.dim).products * used_cpus)
        worker_bytes = min(rows, math.ceil(num_shards / actors) * shard_rows) * size
        return _stage(node, seconds, used_cpus, 0, worker_bytes, num_queries * node.arguments["top_k"] * _PAIR_BYTES)


def _stage(
    node: Node, seconds: float, cpus: float, gpus: float, worker_bytes: float, disk_bytes: float, note: str = ""
) -> StageEstimate:
    return StageEstimate(
        name=node.label, seconds=seconds, cpus=cpus, gpus=gpus, worker_bytes=int(worker_bytes),
        disk_bytes=int(disk_bytes), key=node.key, note=note,
    )  # fmt: skip
