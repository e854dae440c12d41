"""Settings of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PositiveInt, model_validator

from raydr.component import Config, Neutral, Pluggable, Resolved
from raydr.losses.base import Loss
from raydr.losses.nce import NCE
from raydr.models.config import Dtype
from raydr.models.training_config import OptimizerConfig
from raydr.negatives.samplers.base import Sampler
from raydr.negatives.samplers.top import Top
from raydr.training.sections import CoTeachingConfig, DevConfig, GuideConfig, PairDetectionConfig, TeacherConfig

#: Names for the methods of papers: the loss, and its pair detection.
PRESETS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "npc-paper": ("npc", {"detector": "gaussian", "margins": "model"}),
}
#: The dtype in which workers exchange gradients.
Gradients = Literal["float32", "bfloat16"]
#: Arguments of DDP: the exchanged buckets are views of the gradients, not copies.
DDP_SETTINGS: Final[dict[str, Any]] = {"gradient_as_bucket_view": True}


class TrainConfig(Config):
    """Training of a dual encoder: loss, batches, optimiser, dtype, workers, checkpoints and choice of epoch."""

    loss: Annotated[Loss, Pluggable()] = NCE()
    """The loss (docs/methods.md). ``npc`` is recommended for noisy pairs; ``npc-paper`` is the same loss with the pair
    detection of its paper."""

    matryoshka_dims: list[Annotated[int, Field(ge=1)]] = []
    """Numbers of dimensions, including that of the whole vector. The loss is the sum over these numbers of the loss of
    a vector's first dimensions. ``model.truncate_dim`` may then be any of them. The whole vector alone if empty."""

    ranker: Annotated[str, Resolved] = "ranker"
    """The model whose scores the losses ``ranker_kl``, ``margin_mse`` and ``ar2`` read: ``ranker``, the config's
    cross-encoder, or the name of another cross-encoder (``ranker-...``) or of a retriever."""

    teacher: TeacherConfig = TeacherConfig()
    pair_detection: PairDetectionConfig | Literal["auto"] | None = "auto"
    """Detection of mismatched pairs for the loss. ``auto``: the defaults for a loss that reads flags (``npc``), else
    off; off if null."""

    guide: GuideConfig | None = None
    """Exclusion of candidates that another model scores like positives (GIST); off if null."""

    coteaching: CoTeachingConfig | None = None
    """Co-teaching, a baseline with two networks, which takes twice the time; off if null."""

    num_epochs: int = Field(default=3, ge=1)
    """Passes over the training queries."""

    batch_size: int = Field(default=64, ge=2)
    """Queries of an optimiser step, over all workers: the result does not depend on the number of workers."""

    accumulation_steps: int = Field(default=1, ge=1)
    """Micro-batches of a step; each has only its own candidates. The loss of the step is the mean of their losses."""

    cache_tokens: Annotated[int | None, Neutral] = Field(default=None, ge=16)
    """Gradient caching, for batches whose activations do not fit into memory: the maximum of tokens, padding included,
    whose activations are kept at a time. The batch is still a single softmax; texts are encoded twice. Off if null."""

    tile_queries: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Queries whose scores are kept at a time, for batches whose matrix of scores does not fit into memory (65,536
    queries with a passage each: several times 16 GiB). Losses and gradients are the same; scores are computed twice.
    All of a worker's queries if null."""

    recompute_activations: Annotated[bool, Neutral] = False
    """Activation checkpointing: keep only the inputs of layers, and compute each layer twice. Gradients are the same;
    they take a fraction of the memory."""

    num_hard_negatives: int = Field(default=0, ge=0)
    """Hard negatives drawn for each query and epoch from the candidates that the section ``negatives`` mines; without
    that section, from the candidates of the data. Random passages fill a list that is too short."""

    sampler: Annotated[Sampler, Pluggable()] = Top()
    """The rule that draws hard negatives from the candidate list."""

    in_batch_negatives: bool = True
    """Use the passages of other queries (and workers) as negatives."""

    positive: Literal["drawn", "first"] = "drawn"
    """The positive of a query with several: drawn for each epoch, or the first."""

    optimizer: OptimizerConfig = OptimizerConfig()
    dtype: Dtype = "auto"
    """Dtype of the forward pass; ``auto``: bfloat16 if the device is fast in it, else float32. The log states it."""

    num_workers: Annotated[int | tuple[int, int], Neutral] = 1
    """Ray Train workers. A pair is the minimum and the maximum: the group is resized as nodes come and go."""

    cpus_per_worker: Annotated[float, Neutral] = Field(default=1, gt=0)
    """CPUs and threads of a Ray worker, or of a trial. A training without Ray uses all CPUs of the machine."""

    use_gpu: Annotated[bool, Neutral] = False
    """Train on a GPU per worker."""

    gradients: Gradients = "float32"
    """Dtype in which workers exchange the gradients of a step. ``bfloat16`` halves the traffic, and rounds: the model
    then depends on the number of workers, within the rounding."""

    node_labels: Annotated[dict[str, str], Neutral] = {}
    """Labels of the nodes for workers, for example ``{market: on-demand}`` or ``{group: train}``. The cluster's file
    sets these labels for its groups. Any node if empty; for a trial of one worker, ``ray.node_labels`` then count."""

    max_failures: Annotated[int, Neutral] = Field(default=3, ge=-1)
    """Maximum of restarts of the worker group after errors of its workers. Restarts after the loss of a node do not
    count, since a cloud may take a node back at any time."""

    checkpoint_steps: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Steps between checkpoints inside an epoch; only at its end if null."""

    checkpoint_minutes: Annotated[float | None, Neutral] = Field(default=5, gt=0)
    """Minutes after which a checkpoint is written, at the next logged step; never inside an epoch if null. The loss of
    a node without notice costs at most these minutes. An elastic group takes a node that joins at its next checkpoint.
    After a cloud's notice each logged step writes a checkpoint, at most every ten seconds."""

    share_warmup: Annotated[PositiveInt | tuple[PositiveInt, ...] | None, Neutral] = None
    """Numbers of epochs of plain NCE after which the state becomes an artefact. All trainings of the working folder
    that begin with these epochs continue from it: those with ``nce``, and those with a loss of at least that warm-up. A
    comparison then trains these epochs once. The model stays the same."""

    log_steps: Annotated[int, Neutral] = Field(default=10, ge=1)
    """Steps between two rows of step metrics in the log, and between two checks that gradients are finite."""

    keep: Literal["best", "last"] = "best"
    """The epoch whose state becomes the model: the best on dev, or the last. Epochs of the loss's warm-up do not count,
    since they are plain NCE."""

    dev: DevConfig = DevConfig()

    @model_validator(mode="before")
    @classmethod
    def _write_out_preset(cls, settings: Any) -> Any:
        """Replace the name of a preset by its loss and detection, so that both notations have the same key."""
        loss = settings.get("loss") if isinstance(settings, Mapping) else None
        loss_settings = {"name": loss} if isinstance(loss, str) else loss
        if not isinstance(loss_settings, Mapping) or loss_settings.get("name") not in PRESETS:
            return settings
        name, preset = PRESETS[loss_settings["name"]]
        own = settings.get("pair_detection", "auto")
        detection = preset if own == "auto" else {**preset, **own} if isinstance(own, Mapping) else own
        return {**settings, "loss": {**loss_settings, "name": name}, "pair_detection": detection}

    @model_validator(mode="after")
    def _divisible(self) -> TrainConfig:
        counts = [self.num_workers] if isinstance(self.num_workers, int) else list(self.num_workers)
        if any(count < 1 for count in counts) or counts != sorted(counts):
            raise ValueError(f"num_workers must be at least 1, and minimum <= maximum; got {self.num_workers}")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by accumulation_steps {self.accumulation_steps}"
            )
        share, most = self.batch_size // self.accumulation_steps, counts[-1]
        if share < most:
            raise ValueError(f"{most} workers share the {share} queries of a micro-batch: some would have none")
        uneven = [count for count in range(counts[0], most + 1) if share % count]
        if uneven and self.coteaching is not None:
            raise ValueError(
                f"coteaching chooses pairs of the global batch, which {uneven[0]} workers cannot share evenly: "
                f"batch_size {self.batch_size} in {self.accumulation_steps} accumulation_steps"
            )
        if self.coteaching is not None and self.loss.needs_teacher:
            raise ValueError(f"coteaching has no teacher, which the loss {self.loss.name!r} needs: use another loss")
        if self.coteaching is not None and self.coteaching.noise_rate is None and self.detection is None:
            raise ValueError("coteaching needs a noise_rate, or pair_detection to estimate it")
        if self.coteaching is not None and self.loss.reads_pair_flags:
            raise ValueError(
                f"coteaching trusts pairs with a small loss, and in the loss {self.loss.name!r} flagged pairs have "
                "none: take nce or rcl"
            )
        if self.loss.reads_draw_probabilities and not (
            self.num_hard_negatives and self.sampler.tells_draw_probabilities
        ):
            raise ValueError(
                f"the loss {self.loss.name!r} needs hard negatives with known draw probabilities: set "
                "num_hard_negatives, and sampler to {name: softmax, with_replacement: true}"
            )
        if self.loss.reads_ranker_scores and not self.num_hard_negatives:
            raise ValueError(
                f"the loss {self.loss.name!r} learns from a ranker's scores of hard negatives: set num_hard_negatives"
            )
        if self.batch_size // self.accumulation_steps < 2 and not self.num_hard_negatives:
            raise ValueError(
                f"batch_size {self.batch_size} in {self.accumulation_steps} accumulation_steps leaves a single query "
                "per micro-batch, which has no negative: accumulate less, or set num_hard_negatives"
            )
        if not self.in_batch_negatives and not self.num_hard_negatives:
            raise ValueError("without in-batch negatives there must be hard negatives: set num_hard_negatives")
        return self

    @property
    def shared_epochs(self) -> list[int]:
        """Numbers of ``share_warmup`` whose epochs this training begins with: all epochs up to them are plain NCE.

        >>> TrainConfig(loss={"name": "npc", "warmup_epochs": 2}, share_warmup=(1, 2, 3)).shared_epochs
        [1, 2]
        """
        numbers = (self.share_warmup,) if isinstance(self.share_warmup, int) else self.share_warmup or ()
        # NCE with a detector detects from the first epoch on, with the untrained model, and its states hold the flags.
        is_plain = isinstance(self.loss, NCE) and self.detection is None
        num_plain = self.num_epochs if is_plain else self.loss.num_warmup_epochs
        if self.coteaching is not None:
            return []
        limits = [num_plain, self.num_epochs - 1]
        if self.dev.patience is not None:
            # Shared epochs ignore patience, which may end this training one epoch later.
            limits.append(self.loss.first_own_epoch(self.num_epochs) + self.dev.patience)
        return sorted({epochs for epochs in numbers if epochs <= min(limits)})

    @property
    def detection(self) -> PairDetectionConfig | None:
        """Settings of the pair detection; None without detection.

        >>> [TrainConfig.model_validate({"loss": name}).detection is not None for name in ("nce", "npc", "npc-paper")]
        [False, True, True]
        """
        if self.pair_detection != "auto":
            return self.pair_detection
        return PairDetectionConfig() if self.loss.reads_pair_flags else None

    @property
    def reads_margins(self) -> bool:
        """Whether the detection reads cross-fitted margins."""
        return self.detection is not None and self.detection.margins == "cross_fitted"

    def resolved(self) -> TrainConfig:
        """Return the settings with ``auto`` of detection and teacher resolved; equivalent settings become equal."""
        teacher = self.teacher.resolved(self.loss.needs_teacher)
        return self.model_copy(update={"pair_detection": self.detection, "teacher": teacher})

    @property
    def passages_per_query(self) -> int:
        """Number of passages per query of a batch: its positive and its hard negatives."""
        return 1 + self.num_hard_negatives

    @property
    def threads_per_worker(self) -> int | None:
        """Threads of a worker; None with a GPU, where it uses all CPUs of its machine."""
        return None if self.use_gpu else max(1, int(self.cpus_per_worker))

    @property
    def fewest_workers(self) -> int:
        """Minimum of workers of a training."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]
