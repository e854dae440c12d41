"""Settings of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PositiveInt, model_validator

from raydr.component import Config, Neutral, Pluggable, Resolved
from raydr.data.partitions import Scope
from raydr.evaluation.metrics import MeasureName
from raydr.losses.base import Loss
from raydr.losses.nce import NCE
from raydr.models.config import Dtype
from raydr.models.training_config import OptimizerConfig
from raydr.negatives.samplers.base import Sampler
from raydr.negatives.samplers.top import Top
from raydr.noise.detectors.base import Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.judges.margin import MarginLimit

#: Epochs of a teacher's half-life, and its momentum in the key where no loss reads a teacher.
_HALF_LIFE, _UNASKED_MOMENTUM = 2.0, 0.99
#: Names of losses that stand for a method of a paper: the loss, and the detection that belongs to it.
PRESETS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "npc-paper": ("npc", {"detector": "gaussian", "margins": "model"}),
}
#: The type in which workers send each other gradients.
Gradients = Literal["float32", "bfloat16"]


class DevConfig(Config):
    """Retrieval on the dev split after each epoch, against a part of the corpus."""

    max_queries: int = Field(default=500, ge=1)
    """The dev queries used, at most, chosen by (seed, query_id)."""

    random_passages: int = Field(default=5000, ge=0)
    """Random passages put beside the dev queries' positives and negatives."""

    scope: Scope = "own"
    """Where passages have partitions: those that a dev query is searched in, and random passages are of."""

    measure: MeasureName = "RR@10"
    """The measure that chooses the checkpoint, in ir-measures' notation; higher is better."""

    patience: int | None = Field(default=None, ge=1)
    """Epochs without a better dev measure after which training ends; never if null."""


class TeacherConfig(Config):
    """The EMA teacher of losses that need one."""

    momentum: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    """α: after each step the teacher becomes α · teacher + (1 − α) · student. ``auto``: a half-life of two epochs."""

    half_life: float | None = Field(default=None, gt=0)
    """Epochs in which the teacher forgets half of what it was, in place of ``momentum``: the same lag with batches and
    data of any size."""

    def resolved(self, is_read: bool) -> TeacherConfig:
        """Return the settings with ``auto`` written out.

        Args:
            is_read: whether the loss reads a teacher; a teacher that no loss reads has the momentum 0.99.
        """
        if self.momentum != "auto":
            return self
        half_life = _HALF_LIFE if is_read and self.half_life is None else self.half_life
        return TeacherConfig(momentum=_UNASKED_MOMENTUM, half_life=half_life)

    def momentum_of(self, epoch_steps: float) -> float:
        """Return the teacher's momentum α for an epoch of so many steps.

        >>> round(TeacherConfig().momentum_of(39), 4), round(TeacherConfig(half_life=1).momentum_of(39), 4)
        (0.9912, 0.9824)
        """
        half_life = _HALF_LIFE if self.half_life is None and self.momentum == "auto" else self.half_life
        return float(self.momentum) if half_life is None else float(0.5 ** (1 / (half_life * epoch_steps)))


class PairDetectionConfig(Config):
    """Detection of mismatched training pairs, after the loss's warm-up. The defaults are what is recommended."""

    detector: Annotated[Detector, Pluggable()] = LocalFdrDetector()
    """How perplexities become flags: ``local_fdr`` for cross-fitted margins; of the model in training ``gaussian`` is
    the paper's, ``anchored`` leaves clean pairs alone."""

    margins: Literal["cross_fitted", "model"] = "cross_fitted"
    """Who measures the pairs. ``cross_fitted``: the short trainings of the section ``cross_fit``, each the pairs that
    it has not seen, once. ``model``: the model in training, which has partly learnt the pairs, before every epoch.
    ``num_random``, ``repeat`` and ``against`` belong to ``model``."""

    num_random: int = Field(default=255, ge=1)
    """Random passages (positives of other pairs) that each pair is measured against."""

    repeat: Literal["each_epoch", "once"] = "each_epoch"
    """``each_epoch``: anew before every epoch; ``once``: only after the warm-up (an ablation of the paper)."""

    against: Literal["random", "hard"] = "random"
    """Measure against the query's hard negatives instead of random passages (an ablation of the paper)."""

    weights: Literal["flags", "posterior"] = "flags"
    """ŷ of the loss: 0 for a flagged pair and 1 for others, or every pair's p(clean)."""

    @model_validator(mode="after")
    def _check_random_pairs(self) -> PairDetectionConfig:
        if self.against == "hard" and self.margins == "cross_fitted":
            raise ValueError(
                "cross-fitted margins are measured against random passages: set margins to model, or against to random"
            )
        if self.against == "hard" and self.detector.reads_random_pairs:
            raise ValueError(
                f"detector {self.detector.name} compares with random pairs: against must be random, not hard"
            )
        return self


class GuideConfig(MarginLimit):
    """GIST while training: other queries' passages, and hard negatives, that look like positives are no negatives.

    A candidate of a query is left out if the guide, the model of ``judge.guide``, finds it nearer than the query's
    positive less a margin; 0 is the paper's rule. The guide's vectors of the training queries and of the corpus are
    made once, before training.
    """


class CoTeachingConfig(Config):
    """Two networks that choose each other's training pairs; the better one on dev is the result.

    The second starts as a copy of the first: dropout is what makes them differ.
    """

    noise_rate: float | None = Field(default=None, ge=0.0, lt=1.0)
    """ε, the share of pairs taken to be mismatched; if null, the share that ``pair_detection`` flags."""

    ramp_epochs: int = Field(default=10, ge=1)
    """T_k, the epochs over which the share that is left out grows to ε."""

    def keep_share(self, epoch: int, share_flagged: float | None) -> float:
        """Return R(T), the share of each batch that is trained on after T = ``epoch`` finished epochs.

        R(T) = 1 − min(T / T_k · ε, ε): everything at first, before the networks can recognise noise, and before a first
        detection; then less and less, until the share 1 − ε is left.

        Source: Han et al., Co-teaching (NeurIPS 2018).

        >>> schedule = CoTeachingConfig(noise_rate=0.4, ramp_epochs=2)
        >>> [round(schedule.keep_share(epoch, None), 2) for epoch in range(4)]
        [1.0, 0.8, 0.6, 0.6]
        """
        rate = share_flagged if self.noise_rate is None else self.noise_rate
        return 1.0 - min(epoch / self.ramp_epochs, 1.0) * min(rate or 0.0, 0.99)


class TrainConfig(Config):
    """Ray Train over a dual encoder."""

    loss: Annotated[Loss, Pluggable()] = NCE()
    """What is minimised (docs/methods.md). ``npc`` alone is what is recommended for noisy pairs; ``npc-paper`` is the
    same loss with the detection of its paper."""

    matryoshka_dims: list[Annotated[int, Field(ge=1)]] = []
    """Numbers of dimensions, that of the whole vector among them: the loss is the sum of those of so many first
    dimensions each, so that ``model.truncate_dim`` may be any of them. The whole vector alone if empty."""

    ranker: Annotated[str, Resolved] = "ranker"
    """Whose scores the losses ``ranker_kl``, ``margin_mse`` and ``ar2`` learn from: the config's cross-encoder, another
    one's name (``ranker-...``), or a retriever's."""

    teacher: TeacherConfig = TeacherConfig()
    pair_detection: PairDetectionConfig | Literal["auto"] | None = "auto"
    """Flag mismatched pairs for the loss. ``auto``: with its defaults for a loss that reads flags (``npc``), else off;
    off if null."""

    guide: GuideConfig | None = None
    """Leave out candidates that another model takes for positives (GIST); off if null."""

    coteaching: CoTeachingConfig | None = None
    """Co-teaching, a baseline; off if null. It takes twice the time of one network."""

    num_epochs: int = Field(default=3, ge=1)
    """Passes over the training queries."""

    batch_size: int = Field(default=64, ge=2)
    """Queries in one optimiser step, over all workers: the result does not depend on the number of workers."""

    accumulation_steps: int = Field(default=1, ge=1)
    """Micro-batches of one step; each has only its own candidates, the step takes the mean of their losses."""

    cache_tokens: Annotated[int | None, Neutral] = Field(default=None, ge=16)
    """Gradient caching, for batches whose activations do not fit into memory: most tokens, padding included, that are
    held with their activations at a time. The batch still is one softmax; texts are encoded twice. Off if null."""

    tile_queries: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Queries whose scores are held at a time, for batches whose matrix of scores does not fit into memory (65,536
    queries with one passage each: 16 GiB, several times over): the same losses and gradients, scores being computed
    twice. All of a worker's queries at once if null."""

    recompute_activations: Annotated[bool, Neutral] = False
    """Activation checkpointing: keep the inputs of the layers only and compute each layer twice. The same gradients
    from a fraction of the memory."""

    num_hard_negatives: int = Field(default=0, ge=0)
    """Hard negatives drawn for each query and epoch: of the candidates that the section negatives mines, without one of
    those that came with the data. A query that has too few gets random passages."""

    sampler: Annotated[Sampler, Pluggable()] = Top()
    """How they are drawn from the candidate list."""

    in_batch_negatives: bool = True
    """Count the passages of other queries (and workers) as negatives."""

    positive: Literal["drawn", "first"] = "drawn"
    """Which positive is used where a query has several: drawn for each epoch, or the first (of the loss
    ``multi_positive_nce``: which ones, and the first ones)."""

    optimizer: OptimizerConfig = OptimizerConfig()
    dtype: Dtype = "auto"
    """Arithmetic of the forward pass; ``auto``: bfloat16 where the device is fast in it, said in the log."""

    num_workers: Annotated[int | tuple[int, int], Neutral] = 1
    """Ray Train workers. A pair means fewest and most: the group is resized as nodes come and go."""

    cpus_per_worker: Annotated[float, Neutral] = Field(default=1, gt=0)
    """CPUs and threads of a worker of Ray, or of a trial. A training in this process computes with all that the machine
    has."""

    use_gpu: Annotated[bool, Neutral] = False
    """One GPU for each worker."""

    gradients: Gradients = "float32"
    """In which type workers send each other the gradients of a step: ``bfloat16`` halves what the network carries, and
    rounds (the model then depends on the number of workers within that). All else of a step stays as it is."""

    node_labels: Annotated[dict[str, str], Neutral] = {}
    """Labels of the nodes that workers are placed on, for example ``{market: on-demand}`` or ``{group: train}``: the
    keys and values that the cluster's file gives its groups. Any node if empty."""

    max_failures: Annotated[int, Neutral] = Field(default=3, ge=-1)
    """Restarts of the worker group after errors of its workers before giving up. Those after the loss of a node, which
    a cloud may take back at any time, are not counted."""

    checkpoint_steps: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Steps between checkpoints inside an epoch; only at its end if null."""

    checkpoint_minutes: Annotated[float | None, Neutral] = Field(default=5, gt=0)
    """Minutes after which a checkpoint is written at the next step that is logged: what a lost node costs at most, and
    a node that joins an elastic group, which starts again from the last checkpoint. Never inside an epoch if null."""

    share_warmup: Annotated[PositiveInt | tuple[PositiveInt, ...] | None, Neutral] = None
    """Make the state after so many epochs of plain NCE (or after each of several numbers) an artefact of its own. All
    trainings of the working folder that begin with these epochs go on from it, so that a comparison trains them once:
    those with a loss whose warm-up is as long, and those with ``nce``. The model stays the same."""

    log_steps: Annotated[int, Neutral] = Field(default=10, ge=1)
    """Steps between two rows of step metrics in the log."""

    keep: Literal["best", "last"] = "best"
    """Which state becomes the model: the epoch that is best on dev, or the last one. Epochs of the loss's warm-up do
    not count: they are plain NCE."""

    dev: DevConfig = DevConfig()

    @model_validator(mode="before")
    @classmethod
    def _write_out_preset(cls, settings: Any) -> Any:
        """Replace a preset's name by its loss and detection, so that both ways of writing have one key."""
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
            raise ValueError(f"num_workers must be at least 1, and fewest <= most; got {self.num_workers}")
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
                f"coteaching takes pairs of a small loss for right, and the loss {self.loss.name!r} gives flagged "
                "pairs none at all: take nce or rcl"
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
                f"batch_size {self.batch_size} in {self.accumulation_steps} accumulation_steps leaves one query a "
                "micro-batch, which has no negative: accumulate less, or set num_hard_negatives"
            )
        if not self.in_batch_negatives and not self.num_hard_negatives:
            raise ValueError("without in-batch negatives there must be hard negatives: set num_hard_negatives")
        return self

    @property
    def shared_epochs(self) -> list[int]:
        """The numbers of ``share_warmup`` that this training begins with: all epochs up to them are plain NCE.

        >>> TrainConfig(loss={"name": "npc", "warmup_epochs": 2}, share_warmup=(1, 2, 3)).shared_epochs
        [1, 2]
        """
        asked = (self.share_warmup,) if isinstance(self.share_warmup, int) else self.share_warmup or ()
        # NCE with a detector detects from the first epoch on, with the untrained model, and its states carry the flags.
        is_plain = isinstance(self.loss, NCE) and self.detection is None
        num_plain = self.num_epochs if is_plain else self.loss.num_warmup_epochs
        if self.coteaching is not None:
            return []
        return sorted({epochs for epochs in asked if epochs <= min(num_plain, self.num_epochs - 1)})

    @property
    def detection(self) -> PairDetectionConfig | None:
        """How pairs are flagged; None if they are not.

        >>> [TrainConfig.model_validate({"loss": name}).detection is not None for name in ("nce", "npc", "npc-paper")]
        [False, True, True]
        """
        if self.pair_detection != "auto":
            return self.pair_detection
        return PairDetectionConfig() if self.loss.reads_pair_flags else None

    def resolved(self) -> TrainConfig:
        """The settings with ``auto`` of detection and teacher written out: equal for all that mean the same."""
        teacher = self.teacher.resolved(self.loss.needs_teacher)
        return self.model_copy(update={"pair_detection": self.detection, "teacher": teacher})

    @property
    def passages_per_query(self) -> int:
        """Places of passages that each query of a batch has: of its positives, then of its hard negatives."""
        return self.loss.num_positives_at_once + self.num_hard_negatives

    @property
    def fewest_workers(self) -> int:
        """Workers without which training cannot go on."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]
