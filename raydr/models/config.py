"""Settings of models, and the number of positions of a checkpoint by its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from raydr.component import Config, Pluggable, Resolved
from raydr.errors import ModelError
from raydr.models.checkpoint_settings import (
    MODEL_FILE,
    OFFLINE_CHECKPOINT,
    CheckpointFiles,
    checkpoint_settings_of,
    is_whole,
    packaged_folder,
    with_checkpoint,
)
from raydr.models.foreign_settings import positions_of
from raydr.models.prompt import PromptConfig
from raydr.models.scores.base import ScoreFunction, Vectors
from raydr.models.scores.dual import Dual

if TYPE_CHECKING:
    from torch import Tensor


def num_positions(checkpoint: str, ask_hub: bool = True) -> int | None:
    """Return the maximum of tokens that a checkpoint reads; None if unlimited or unknown.

    Args:
        checkpoint: folder, URL, name on the hub, or ``offline:minilm``.
        ask_hub: whether to look up a name on the hub.
    """
    # Loading its weights reports a missing package.
    files = CheckpointFiles(packaged_folder() or "./" if checkpoint == OFFLINE_CHECKPOINT else checkpoint)
    config: Any = None if files.on_hub and not ask_hub else files.read("config.json")
    return positions_of(config) if isinstance(config, dict) else None


def check_positions(checkpoint: str, max_length: int, setting: str, ask_hub: bool = True) -> None:
    """Refuse a maximum length beyond the checkpoint's positions.

    Raises:
        ValueError: the checkpoint has fewer positions than ``max_length``.
    """
    positions = num_positions(checkpoint, ask_hub)
    if positions is not None and max_length > positions:
        raise ValueError(f"{setting} is {max_length}, but {checkpoint} has positions for {positions} tokens only")


Side = Literal["query", "passage"]
SIDES: tuple[Side, Side] = ("query", "passage")
Similarity = Literal["cosine", "dot"]
Pooling = Literal["mean", "cls", "last"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

#: Width of the vectors of tokens where ``projection`` is ``auto``, as in ColBERT.
TOKEN_DIM = 128


class SideConfig(Config):
    """How the texts of a side, queries or passages, become tokens."""

    prefix: str = ""
    """Text in front of every text, for example ``query: ``."""

    max_length: int = Field(default=128, ge=4, le=8192)
    """Maximum of tokens of a text, special tokens included; longer texts are cut."""


class ModelConfig(Config):
    """A dual encoder over any Hugging Face ``AutoModel``.

    A checkpoint of sentence-transformers, or a raydr model, has its own pooling, prompts, lengths, similarity and
    projection. They replace the defaults; explicit settings replace them.
    """

    checkpoint: Annotated[str, Resolved] = OFFLINE_CHECKPOINT
    """A Hugging Face name, a folder or URL (``s3://``, ``gs://``) of a checkpoint or raydr model, or
    ``offline:minilm``."""

    passage_checkpoint: Annotated[str, Resolved] = ""
    """Checkpoint of the passage tower, for ``towers: two``; the query checkpoint if empty."""

    num_layers: int | None = Field(default=None, ge=1)
    """Keep only the first layers of the checkpoint; all of them if null."""

    towers: Literal["shared", "two"] = "shared"
    """An encoder for both sides, or an encoder for each side."""

    pooling: Pooling = "mean"
    """The vector of a text: the mean over all tokens, the first token, or the last. In a decoder only the last token
    attends to the whole text."""

    projection: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
    """Width of a linear layer after pooling; no layer if null. ``auto``: 128 if the score function reads the vectors of
    all tokens, else no layer."""

    activation: Literal["none", "tanh"] = "none"
    """Function of the numbers behind the linear layer, as in LaBSE."""

    truncate_dim: int | None = Field(default=None, ge=1)
    """Keep only the first dimensions of a vector, as models trained for it (Matryoshka) allow; all of them if null."""

    score: Annotated[ScoreFunction, Pluggable()] = Dual()
    """The function of the vectors of a query and of a passage that is their similarity."""

    similarity: Similarity = "cosine"
    """``cosine`` scales vectors to length 1, ``dot`` keeps their length."""

    scale: float = Field(default=20.0, gt=0)
    """τ in the papers, the inverse of the temperature: scores are scale · similarity."""

    query: SideConfig = SideConfig(max_length=64)
    passage: SideConfig = SideConfig(max_length=160)
    title: Literal["pair", "join"] = "join"
    """How title and text become an input: ``pair`` as two segments, ``join`` as a single text with a separator."""

    title_separator: str = " "
    """Separator of title and text, for ``title: join``."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout during training; the checkpoint's own if null."""

    trust_remote_code: bool = False
    """Run code of the checkpoint; only for models that you trust."""

    @model_validator(mode="wrap")
    @classmethod
    def _take_up_checkpoint(cls, settings: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(settings, Mapping) or is_whole(settings, cls.model_fields):
            return make(settings)
        made = make(with_checkpoint(settings))
        for name in SIDES:
            own = made.passage_checkpoint if name == "passage" and made.towers == "two" else ""
            check_positions(own or made.checkpoint, made.side(name).max_length, f"{name}.max_length")
        return made

    @model_validator(mode="after")
    def _check_towers(self) -> Self:
        if self.passage_checkpoint and self.towers == "shared":
            raise ValueError("passage_checkpoint needs towers: two; a shared tower starts from checkpoint alone")
        return self

    @model_validator(mode="after")
    def _truncates_no_tokens(self) -> Self:
        if self.truncate_dim is not None and any(self.vectors(side).kind == "tokens" for side in SIDES):
            raise ValueError(
                f"truncate_dim: score {self.score.name} reads the vectors of all tokens, whose width is projection: "
                "unset truncate_dim"
            )
        return self

    @model_validator(mode="after")
    def _activates_a_projection(self) -> Self:
        if self.activation != "none" and (
            self.projected_dim is None or any(self.vectors(side).kind == "tokens" for side in SIDES)
        ):
            raise ValueError(
                f"activation {self.activation} needs a projection of a single vector per text; projection is "
                f"{self.projection}, score {self.score.name}: set activation to none, or a width for projection"
            )
        return self

    @model_validator(mode="after")
    def _texts_have_so_many_tokens(self) -> Self:
        for name in SIDES:
            vectors, longest = self.vectors(name), self.side(name).max_length
            if vectors.kind == "first" and vectors.num > longest:
                raise ValueError(
                    f"score {self.score.name} reads the first {vectors.num} tokens of a {name}, which has at most "
                    f"{name}.max_length {longest}: read fewer, or keep more"
                )
        return self

    def side(self, side: Side) -> SideConfig:
        return self.query if side == "query" else self.passage

    def vectors(self, side: Side) -> Vectors:
        """Return the vectors that the score function reads of a side's texts."""
        return self.score.query_vectors if side == "query" else self.score.passage_vectors

    @property
    def projected_dim(self) -> int | None:
        """Width of the linear layer after pooling; None without it."""
        if self.projection == "auto":
            return TOKEN_DIM if any(self.vectors(side).kind == "tokens" for side in SIDES) else None
        return self.projection

    @property
    def is_retriever(self) -> bool:
        """Whether the model retrieves without any training.

        Its checkpoint is of sentence-transformers or raydr, and holds the weights of projection and score function. It
        keeps all layers and pools as in its own training.
        """
        names = filter(None, (self.checkpoint, self.passage_checkpoint))
        brought: list[Mapping[str, Any]] = [
            {"pooling": "mean"} if name == OFFLINE_CHECKPOINT else checkpoint_settings_of(name).settings
            for name in names
        ]
        score = self.score.model_dump()
        return self.num_layers is None and all(
            own.get("pooling") == self.pooling
            and (self.projected_dim is None or own.get("projection") == self.projection)
            and own.get("activation", "none") == self.activation
            and (self.score.name in ("dual", "sum_of_max") or own.get("score") == score)
            for own in brought
        )

    def logits(self, query: Tensor, passage: Tensor) -> Tensor:
        """Compute scale · similarity of pairs; arguments as in :meth:`raydr.models.scores.base.ScoreFunction.pairs`."""
        return self.scale * self.score.pairs(query, passage)

    def logits_QP(self, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        """Compute scale · similarity of every query with every passage, float32."""
        return self.scale * self.score.all_pairs(query_QD, passage_PD)


class CrossEncoderConfig(Config):
    """A model that reads query and passage together and returns a score of relevance."""

    checkpoint: Annotated[str, Resolved] = OFFLINE_CHECKPOINT
    """A Hugging Face name, a folder or URL, or ``offline:minilm``; a saved cross-encoder keeps its classifier, any
    other checkpoint gets a new classifier."""

    num_layers: int | None = Field(default=None, ge=1)
    """Keep only the first layers of the checkpoint; all of them if null."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout during training; the checkpoint's own if null. With 0 the result does not depend on the number of
    workers."""

    max_length: int = Field(default=256, ge=8, le=8192)
    """Maximum of tokens of query, title and text together; beyond it, the longer of query and passage is cut."""

    title_separator: str = " "
    """Separator of title and text."""

    prompt: PromptConfig | None = None
    """For a language model as the checkpoint: its question about a pair. The score is the log-odds of yes. Texts of
    queries and passages are cut to ``max_length``, never the prompt."""

    trust_remote_code: bool = False
    """Run code of the checkpoint; only for models that you trust."""

    @model_validator(mode="after")
    def _has_so_many_positions(self) -> Self:
        # Every config has this section, so an unused checkpoint is not looked up on the hub.
        check_positions(self.checkpoint, self.max_length, "max_length", ask_hub=False)
        return self


def read_config(folder: str | Path) -> ModelConfig:
    """Read the config of a saved model.

    Raises:
        ModelError: the folder holds no raydr model.
    """
    file = Path(folder) / MODEL_FILE
    if not file.exists():
        raise ModelError(f"{folder} holds no raydr model: expected a file {MODEL_FILE}")
    try:
        return ModelConfig.model_validate_json(file.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ModelError(
            f"{file} holds no settings of a model ({where}: {problem['msg']}): save the model again"
        ) from None


def tower_folder(folder: str | Path, side: Side) -> Path:
    """Return the folder of the encoder and the tokenizer of a saved model's side."""
    root = Path(folder)
    return root if read_config(folder).towers == "shared" else root / side
