"""The cross-encoder: from a query and a passage in a single input to the log-odds of relevance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raydr.data.corpus import Texts
from raydr.data.judgment_columns import RELEVANT
from raydr.errors import ModelError
from raydr.models.backbone import check_length, choose_attention, shape_backbone
from raydr.models.batching import padded_batches
from raydr.models.checkpoint import naming, resolve_checkpoint
from raydr.models.checkpoint_settings import CheckpointFiles
from raydr.models.config import CrossEncoderConfig
from raydr.models.language_model import PromptTokenizer, YesOrNo
from raydr.models.loading import check_shape, load_network, quiet_transformers
from raydr.models.pair_scoring import FloatArray, IntArray
from raydr.models.precision import in_arithmetic, torch_dtype, torch_threads
from raydr.models.tokens import Tokenizer, Tokens, join_titles

#: The file beside a saved cross-encoder that holds its :class:`CrossEncoderConfig`.
CROSS_ENCODER_FILE = "raydr-cross-encoder.json"
#: Activation with which ``sentence_transformers.CrossEncoder.predict`` returns a probability or the log-odds.
_ACTIVATIONS = {"probability": "torch.nn.modules.activation.Sigmoid", "log_odds": "torch.nn.modules.linear.Identity"}


class CrossEncoder(nn.Module):
    """A Hugging Face sequence classifier with one output (or two: irrelevant, relevant), or a language model that
    answers yes or no (:class:`raydr.models.language_model.YesOrNo`)."""

    def __init__(self, classifier: Any, config: CrossEncoderConfig) -> None:
        super().__init__()
        self.classifier = classifier
        self.config = config
        # Models without segment embeddings (DistilBERT, ModernBERT) take no token types.
        self.uses_token_types = int(getattr(classifier.config, "type_vocab_size", 0) or 0) > 1
        if config.prompt is None:
            num_logits = classifier.config.num_labels
            *_, head = (part for part in classifier.modules() if getattr(part, "out_features", 0) == num_logits)
            head.register_forward_hook(_in_float32)

    @classmethod
    def from_config(
        cls,
        config: CrossEncoderConfig,
        seed: int = 0,
        must_be_trained: bool = False,
        section: str = "judge.classifier",
    ) -> CrossEncoder:
        """Load the checkpoint; a missing classifier is drawn from ``seed``.

        Args:
            config: settings of the model.
            seed: seed of new weights.
            must_be_trained: whether to refuse a checkpoint without a classifier.
            section: section of the settings, for messages.

        Raises:
            ModelError: the checkpoint cannot be loaded, has more than two classes, or lacks a required classifier.
            ConfigError: the checkpoint has fewer positions than ``max_length``, or fewer layers than ``num_layers``.
        """
        classifier = _load_classifier(config, seed, must_be_trained, section)
        shape_backbone(classifier, config, config.checkpoint, f"{section}.model")
        check_length(classifier, config.max_length, f"{section}.model.max_length", config.checkpoint)
        return cls(classifier, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Compute log-odds of relevance, float32, shape (N,), of N padded inputs (N, L)."""
        extra = {"token_type_ids": token_type_ids} if self.uses_token_types else {}
        logits: Tensor = self.classifier(input_ids=input_ids, attention_mask=attention_mask, **extra).logits.float()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

    def save(
        self,
        folder: str | Path,
        tokenizer: PairTokenizer,
        predicts: Literal["probability", "log_odds"] = "probability",
    ) -> None:
        """Write weights (safetensors), tokenizer and config.

        ``sentence_transformers.CrossEncoder`` opens it, except a language model, which that class asks another
        question.

        Args:
            folder: folder to write.
            tokenizer: tokenizer of the model.
            predicts: result of that class's ``predict``, if the model has one output.
        """
        if self.config.prompt is None:
            self.classifier.config.sentence_transformers = {"activation_fn": _ACTIVATIONS[predicts]}
        with quiet_transformers():
            self.classifier.save_pretrained(folder)
        tokenizer.tokenizer.model_max_length = self.config.max_length
        tokenizer.tokenizer.save_pretrained(folder)
        (Path(folder) / CROSS_ENCODER_FILE).write_text(self.config.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> CrossEncoder:
        """Open a cross-encoder that :meth:`save` wrote.

        Raises:
            ModelError: the folder holds no cross-encoder.
        """
        return cls.from_config(read_cross_encoder_config(folder), must_be_trained=True)


def _in_float32(head: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """Return the logits in float32: bfloat16 would round logits of different passages to the same number."""
    if output.dtype == torch.float32:
        return output
    with torch.autocast(output.device.type, enabled=False):
        bias = head.bias.float() if head.bias is not None else None
        return nn.functional.linear(inputs[0].float(), head.weight.float(), bias)


def _load_classifier(config: CrossEncoderConfig, seed: int, must_be_trained: bool, section: str) -> Any:
    """Load the module that computes the logits: a sequence classifier or a language model."""
    resolved = resolve_checkpoint(config.checkpoint)
    what = f"the cross-encoder {config.checkpoint!r}"
    if config.prompt is not None:
        # A model for inference alone keeps its saved dtype.
        dtype = "auto" if must_be_trained else torch.float32
        setting = f"{section}.model.max_length"
        with naming(what):
            return YesOrNo.load(resolved, config.trust_remote_code, dtype, config.max_length, setting)
    return _load_sequence_classifier(resolved, what, config, seed, must_be_trained, section)


def _load_sequence_classifier(
    resolved: str, what: str, config: CrossEncoderConfig, seed: int, must_be_trained: bool, section: str
) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    extra: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    with naming(what), quiet_transformers():
        saved = AutoConfig.from_pretrained(resolved, **extra)
        check_shape(saved, what)
        auto = AutoModelForSequenceClassification
        known = saved.model_type in auto._model_mapping._model_mapping
        base = auto._model_mapping[type(saved)].base_model_prefix if known else ""
    _require_no_prompt(resolved, what)
    trained = any("SequenceClassification" in name for name in saved.architectures or [])
    if must_be_trained and not trained:
        raise ModelError(
            f"{section}.num_epochs is 0, but the checkpoint {config.checkpoint!r} is a "
            f"{', '.join(saved.architectures or ['model of unknown kind'])} without a classifier: give a "
            "cross-encoder, train one with num_epochs of at least 1, or give a language model and a prompt"
        )
    if not trained:
        extra["num_labels"] = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier, _ = load_network(
            AutoModelForSequenceClassification.from_pretrained,
            resolved,
            what,
            # Only the classifier may be new.
            lambda key: not trained and (not key.startswith(f"{base}.") or ".pooler." in key),
            dtype=torch.float32,
            **extra,
        )
    if classifier.config.num_labels > 2:
        raise ModelError(
            f"the cross-encoder {config.checkpoint!r} has {classifier.config.num_labels} classes; expected one "
            "output, or two (irrelevant, relevant)"
        )
    first = str((classifier.config.id2label or {}).get(0, ""))
    if classifier.config.num_labels == 2 and first.lower() in RELEVANT:
        raise ModelError(
            f"the cross-encoder {config.checkpoint!r} has {first!r} as its first class (id2label); expected two "
            "classes in the order irrelevant, relevant"
        )
    if classifier.config.pad_token_id in (None, -1):
        classifier.config.pad_token_id = Tokenizer(resolved, config.trust_remote_code).pad_id
    return classifier


def _require_no_prompt(resolved: str, what: str) -> None:
    """Refuse a cross-encoder of sentence-transformers that reads a prompt before each pair."""
    with naming(what):
        settings = CheckpointFiles(resolved).read("config_sentence_transformers.json") or {}
        prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name") or "")
    if prompt:
        raise ModelError(
            f"{what} puts the prompt {prompt!r} before each pair (default_prompt_name), which raydr does not: unset it "
            "in config_sentence_transformers.json to use the model without"
        )


def read_cross_encoder_config(folder: str | Path) -> CrossEncoderConfig:
    """Read the config of a saved cross-encoder, with the folder as its checkpoint."""
    file = Path(folder) / CROSS_ENCODER_FILE
    if not file.exists():
        raise ModelError(f"{folder} holds no cross-encoder of raydr: expected a file {CROSS_ENCODER_FILE}")
    config = CrossEncoderConfig.model_validate_json(file.read_text(encoding="utf-8"))
    return config.model_copy(update={"checkpoint": str(folder)})


class PairTokenizer(Tokenizer):
    """Tokenizer of pairs (query, title, text): [CLS] query [SEP] title text [SEP], or a language model's prompt."""

    def __init__(self, config: CrossEncoderConfig) -> None:
        super().__init__(resolve_checkpoint(config.checkpoint), config.trust_remote_code, config.prompt is not None)
        self.config, self.prompt = config, None
        if config.prompt is not None:
            self.prompt = PromptTokenizer(self.tokenizer, config.prompt, config.max_length, config.checkpoint)

    @property
    def pad_id(self) -> int:
        """The id that the network takes for padding: decoders read the last token that has another."""
        return super().pad_id if self.network_pad_id is None else self.network_pad_id

    def __call__(self, queries: list[str], titles: list[str], texts: list[str]) -> Tokens:
        """Tokenise pairs; the longer of the two texts of a pair is cut until both fit."""
        if not queries:
            return Tokens.none()
        passages = join_titles(titles, texts, self.config.title_separator)
        if self.prompt is not None:
            return self.prompt(queries, passages)
        # A tokenizer may leave out the segments of a model that has them: the model was trained without segments.
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        return self.encode(queries, passages, "longest_first", self.config.max_length, has_types)


@torch.inference_mode()
def log_odds(model: CrossEncoder, tokens: Tokens, token_budget: int, pad_id: int) -> NDArray[np.float64]:
    """Compute log-odds of relevance of N tokenised pairs, shape (N,), batched by length within the token budget."""
    device = next(model.parameters()).device
    log_odds_N = np.zeros(tokens.num_rows, dtype=np.float64)
    for rows, batch in padded_batches(tokens, token_budget, pad_id):
        log_odds = model(**{key: value.to(device) for key, value in batch.items()})
        log_odds_N[rows] = log_odds.double().cpu().numpy()
    return log_odds_N


class CrossEncoderScorer:
    """Scorer by the log-odds of a saved cross-encoder; arguments as in
    :class:`raydr.models.pair_scoring.DualEncoderScorer`."""

    def __init__(
        self, model: str | Path, dtype: str, device: str, token_budget: int, num_threads: int | None = None
    ) -> None:
        self.num_threads = num_threads
        self.token_budget = token_budget
        self.tokenizer = PairTokenizer(read_cross_encoder_config(model))
        self.model = CrossEncoder.load(model)
        choose_attention(self.model, torch.device(device).type, torch_dtype(dtype))
        in_arithmetic(self.model.to(device=device), torch_dtype(dtype)).eval()

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        tokens = self.tokenizer(
            [queries[at] for at in query_P],
            [passages.titles[at] for at in passage_P],
            [passages.texts[at] for at in passage_P],
        )
        with torch_threads(self.num_threads):
            return log_odds(self.model, tokens, self.token_budget, self.tokenizer.pad_id)


class ProbabilityScorer(CrossEncoderScorer):
    """Scorer by the probability of relevance, for the thresholds of judges."""

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        log_odds_P = torch.from_numpy(super().score(queries, passages, query_P, passage_P))
        return np.asarray(torch.sigmoid(log_odds_P).numpy())
