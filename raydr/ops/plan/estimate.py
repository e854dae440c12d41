"""From sizes and measured rates to seconds, memory and disk of each node. Arithmetic; each formula is in words.

Seconds of a stage are its start-up and its work divided by what the workers that fit do together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from raydr.artefacts.cross_fitting import MARGINS
from raydr.artefacts.declaration import Node
from raydr.artefacts.index import MOST_TRAIN_CPUS
from raydr.artefacts.margins import POOL_SIZE
from raydr.artefacts.ranker_scores import KIND as RANKER_SCORES
from raydr.config.run import RunConfig
from raydr.distributed.arithmetic import places_for_encoders
from raydr.indexing.faiss_backend import EXACT, load_faiss, make_index, resolve_factory
from raydr.models.config import ModelConfig
from raydr.ops.plan.measure import Trials
from raydr.ops.plan.probes import ModelRates, StepRates, TextRates
from raydr.pipeline.forecast import StageEstimate
from raydr.training.config import TrainConfig
from raydr.training.training import Training

#: Seconds that Ray needs for the workers of a stage, beside what they load themselves.
START_SECONDS = 3.0
#: Rounds of k-means in FAISS; bytes of an id with its offset in an Arrow file; of a scored pair; of a row of a run.
_KMEANS_ROUNDS, _ID_BYTES, _PAIR_BYTES = 10, 16, 20


def is_ranker(node: Node) -> bool:
    """Whether a node is the config's cross-encoder; judges have others."""
    return node.kind == "cross_encoder" and node.arguments.get("predicts", "log_odds") == "log_odds"


@dataclass(frozen=True)
class Estimator:
    """Estimates nodes.

    Args:
        config: the run.
        num_passages: of the corpus, or of the one that is planned for.
        num_queries: of each split, by its name.
        capacity: CPUs and GPUs of the cluster; infinite if nobody knows.
        rates: of one worker.
    """

    config: RunConfig
    num_passages: int
    num_queries: Mapping[str, int]
    capacity: Mapping[str, float]
    rates: Trials

    def __call__(self, node: Node) -> StageEstimate | None:
        """What a node takes; None for those that are not planned."""
        asked = node.inputs.get("model", node)
        estimate: Callable[[Node], StageEstimate] | None = None
        if node.kind == "model" and "training" in node.arguments:
            estimate = self._training
        elif is_ranker(node) and "workers" in node.arguments:
            estimate = self._ranker_training
        elif node.kind in ("run", RANKER_SCORES) and is_ranker(asked):
            estimate = self._pairs
        elif node.kind in ("embeddings", MARGINS) and (node.kind == MARGINS or "model" in node.inputs):
            estimate = self._encoding
        elif node.kind == "index":
            estimate = self._index
        elif node.kind == "run" and "index" in node.inputs:
            estimate = self._search
        return None if estimate is None else estimate(node)

    def _model(self, node: Node) -> ModelConfig:
        """The retriever of a node: the run's, that of its folds, or the guide."""
        for made in (node, *node.inputs.values()):
            if "training" in made.arguments:
                return cast(ModelConfig, made.arguments["training"].model)
            if isinstance(made.arguments.get("model"), ModelConfig):
                return cast(ModelConfig, made.arguments["model"])
        return self.config.model

    def _workers(self, num_texts: int) -> tuple[int, int]:
        """Encoders, and tokenising tasks beside them, that run at a time."""
        settings = self.config.encode
        encoders = max(1, int(min(settings.max_actors, places_for_encoders(settings, self.capacity))))
        left = (self.capacity["CPU"] - encoders * settings.cpus_per_actor) / settings.cpus_per_tokenizer
        return encoders, max(1, int(min(left + 1e-6, num_texts)))

    def _reading(
        self, node: Node, num_texts: int, model: ModelRates, texts: TextRates, disk_bytes: float
    ) -> StageEstimate:
        """Encoders and tokenising tasks work at the same time: what is slower counts, one of them or all the CPUs."""
        settings = self.config.encode
        encoders, tokenizers = self._workers(num_texts)
        # Parts are not divided, so the last ones may leave some encoders idle.
        num_parts = max(1, math.ceil(num_texts / self.config.data.part_rows))
        waves = math.ceil(num_parts / encoders) * encoders / num_parts if num_parts < 10 * encoders else 1.0
        encoding, tokenizing = texts.encode / encoders, texts.tokenize / tokenizers
        bounds = [encoding * waves, tokenizing]
        if not settings.gpus_per_actor and self.config.plan.device is None:
            # An encoder computes with whole threads, also if it was given less than a CPU.
            busy = max(1, int(settings.cpus_per_actor)) * texts.encode + texts.tokenize
            bounds.append(busy / self.capacity["CPU"])
        seconds = model.load_seconds + START_SECONDS + num_texts * max(bounds)
        cpus = encoders * settings.cpus_per_actor + min(tokenizers, encoders) * settings.cpus_per_tokenizer
        gpus = encoders * settings.gpus_per_actor
        return StageEstimate(node.label, seconds, cpus, gpus, model.peak_bytes, int(disk_bytes), node.key)

    def _encoding(self, node: Node) -> StageEstimate:
        model, split = self.rates.retriever(self._model(node)), node.arguments.get("split")
        texts = model.texts["passage" if split is None or node.kind == MARGINS else "query"]
        num_texts = self.num_passages if split is None else self.num_queries[split]
        if node.kind == MARGINS:
            # Each pair's passage, and those that random ones are drawn from.
            num_texts += min(num_texts, self.config.cross_fit.num_folds * POOL_SIZE)
        return self._reading(node, num_texts, model, texts, num_texts * (2 * model.dim * texts.vectors + _ID_BYTES))

    def _pairs(self, node: Node) -> StageEstimate:
        """What a ranker reads: candidates of the training queries, or the upper part of a run."""
        negatives, train = self.config.negatives, self.config.train
        num_pairs = self.num_queries[node.arguments["split"]]
        if node.kind == RANKER_SCORES:
            num_pairs *= 1 + (negatives.depth if negatives is not None else train.num_hard_negatives)
        else:
            num_pairs *= min(node.arguments["depth"], self.config.search.top_k)
        model = self.rates.ranker()
        return self._reading(node, num_pairs, model, model.texts["pair"], _PAIR_BYTES * num_pairs)

    def _learning(self, node: Node, seconds: float, model: ModelRates, step: StepRates, networks: int) -> StageEstimate:
        """A training: the model, and a checkpoint of what learns with both moments and the best weights."""
        workers, train = self.config.train.fewest_workers, self.config.train
        seconds += model.load_seconds + 2 * START_SECONDS
        cpus, gpus = workers * train.cpus_per_worker, workers * train.use_gpu
        disk_bytes = networks * 4 * (model.num_parameters + 4 * model.num_learning)
        return StageEstimate(node.label, seconds, cpus, gpus, step.peak_bytes, disk_bytes, node.key)

    @property
    def _trainers(self) -> float:
        """What all training workers do, as a multiple of an encoder, which computes with whole threads."""
        train = self.config.train
        if train.use_gpu or self.config.encode.gpus_per_actor:
            return train.fewest_workers
        return train.fewest_workers * train.cpus_per_worker / max(1, int(self.config.encode.cpus_per_actor))

    def _training(self, node: Node) -> StageEstimate:
        """Steps, the teacher's forward passes, detections and dev retrieval of all epochs.

        A forward pass without gradients costs what encoding the same texts does.
        """
        training: Training = node.arguments["training"]
        train = training.train
        settings = self._model(node)
        model, step = self.rates.retriever(settings), self.rates.step(settings, train)
        num_queries, folds = self.num_queries[training.train_split], self.config.cross_fit.num_folds
        if "cross-fit" in node.label:
            num_queries = num_queries * (folds - 1) // folds
        steps = train.num_epochs * max(1, num_queries // train.batch_size)
        query, passage = (model.texts[side].forward / self._trainers for side in ("query", "passage"))
        networks = 2 if train.coteaching is not None else 1
        # Teacher and detection begin after the loss's warm-up.
        taught = max(0, train.num_epochs - train.loss.num_warmup_epochs)
        seconds = steps * networks * step.seconds
        if train.loss.needs_teacher:
            share = taught / train.num_epochs / train.loss.teacher_every
            seconds += steps * share * train.batch_size * (query + train.passages_per_query * passage)
        # Cross-fitted margins are a stage of their own.
        if train.detection is not None and train.detection.margins == "model":
            times = min(1, taught) if train.detection.repeat == "once" else taught
            seconds += times * num_queries * (query + passage)
        if dev := min(self.num_queries.get(training.dev_split, 0), train.dev.max_queries):
            seconds += train.num_epochs * (dev * (query + passage) + train.dev.random_passages * passage)
        # Gradients travel while the backward pass, two thirds of a step, makes the others.
        sending = self._sending(train, networks * model.num_learning)
        waiting = steps * max(0.0, sending - step.seconds * networks * 2 / 3)
        estimate = self._learning(node, seconds + waiting, model, step, networks)
        share = waiting / estimate.seconds
        waits = f"{share:.0%} of it waits for the network (plan.network_gbits)" if share > 0.1 else ""
        return replace(estimate, note=waits)

    def _sending(self, train: TrainConfig, num_learning: int) -> float:
        """Seconds in which a link between machines carries a step's gradients: 2·(n−1)/n of n workers', in a ring."""
        workers, plan = train.fewest_workers, self.config.plan
        if workers <= plan.workers_per_machine:
            return 0.0
        num_bytes = num_learning * (2 if train.gradients == "bfloat16" else 4)
        return 2 * (workers - 1) / workers * num_bytes * 8 / (plan.network_gbits * 1e9)

    def _ranker_training(self, node: Node) -> StageEstimate:
        """Steps, and dev lists of each epoch."""
        settings, dev_split = node.arguments["settings"], node.arguments["dev"]
        model, step = self.rates.ranker(), self.rates.ranker_step()
        seconds = max(1, self.num_queries[node.arguments["split"]] // settings.batch_size) * step.seconds
        if dev_split and (dev := getattr(settings, "dev", None)) is not None:
            lists = min(dev.max_queries, self.num_queries.get(dev_split, 0))
            seconds += lists * dev.depth * model.texts["pair"].forward / self._trainers
        return self._learning(node, settings.num_epochs * seconds, model, step, networks=1)

    def _index_of(self, node: Node) -> tuple[str, int, ModelRates, float, int]:
        """Factory string of an index, its vectors, the model that made them, bytes of one, and cells (0: none)."""
        model, score = self.rates.retriever(self._model(node)), self.config.model.score
        rows = round(self.num_passages * model.texts["passage"].vectors)
        factory = resolve_factory(self.config.index, rows, model.dim, score)[0]
        if not score.passage_vectors.several:
            return factory, rows, model, *index_bytes(factory, model.dim)
        # Vectors are scored exactly from half precision; another kind of index is beside them.
        size, cells = (0.0, 0) if factory in EXACT else index_bytes(factory, model.dim)
        exact = 0.0 if cells and self.config.index.vectors == "codes" else 2.0 * model.dim
        return factory, rows, model, size + exact, cells

    def _index(self, node: Node) -> StageEstimate:
        """k-means on the sample, the nearest cell of every vector, and writing; as many shards at a time as fit."""
        settings, cpus = self.config.index, self.capacity["CPU"]
        factory, rows, model, size, cells = self._index_of(node.inputs["embeddings"])
        rates = self.rates.search(model.dim)
        num_shards = max(1, math.ceil(rows / settings.shard_rows))
        at_once = max(1, int(min(num_shards, cpus / settings.cpus_per_task)))
        threads = settings.train_cpus or int(min(MOST_TRAIN_CPUS, max(1, cpus)))
        products = cells * model.dim / rates.products
        train = min(rows, settings.train_rows) * products * _KMEANS_ROUNDS / threads
        assign = rows * products / (settings.cpus_per_task * at_once)
        fill = rows * model.dim * 4 / (rates.fill_bytes * at_once)
        seconds, held = START_SECONDS + train + assign + fill, at_once * settings.cpus_per_task
        worker_bytes = int(min(rows, settings.shard_rows) * size + self.config.data.part_rows * model.dim * 4)
        disk_bytes = int(rows * size + self.num_passages * (_ID_BYTES + 8))
        note = factory + (f" in {num_shards:,} shards" if num_shards > 1 else "")
        return StageEstimate(node.label, seconds, held, 0, worker_bytes, disk_bytes, node.key, note)

    def _search(self, node: Node) -> StageEstimate:
        """Products of each query's vectors with those that are looked at, by all CPUs, a shard each if their number is
        open."""
        settings, cpus = self.config.search, self.capacity["CPU"]
        _, rows, model, size, cells = self._index_of(node.inputs["queries"])
        looked_at = rows * min(1.0, settings.nprobe / cells) + cells if cells else rows
        shard_rows, num_queries = (
            self.config.index.shard_rows,
            self.num_queries[node.inputs["queries"].arguments["split"]],
        )
        num_shards = max(1, math.ceil(rows / shard_rows))
        actors = min(num_shards, settings.max_actors or num_shards)
        if not math.isinf(cpus):
            actors = max(1, min(actors, int(cpus / (settings.cpus_per_actor or 1))))
        threads = settings.cpus_per_actor or (1 if math.isinf(cpus) else None)
        held = min(cpus, actors * threads) if threads else cpus
        products = num_queries * model.texts["query"].vectors * looked_at * model.dim
        seconds = START_SECONDS + products / (self.rates.search(model.dim).products * held)
        worker_bytes = int(min(rows, math.ceil(num_shards / actors) * shard_rows) * size)
        disk_bytes = num_queries * node.arguments["top_k"] * _PAIR_BYTES
        return StageEstimate(node.label, seconds, held, 0, worker_bytes, disk_bytes, node.key)


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
