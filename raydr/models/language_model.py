"""A language model as a cross-encoder: the log-odds that it answers yes to a question about query and passage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raydr.data.parts import offsets_of
from raydr.errors import ConfigError, ModelError
from raydr.models.loading import check_shape, load_network
from raydr.models.prompt import WORDS, PromptConfig, plain_word
from raydr.models.tokens import Tokens

#: Marks in place of a pair's texts while the chat template is filled.
_MARKS = ("\N{OBJECT REPLACEMENT CHARACTER}query\N{OBJECT REPLACEMENT CHARACTER}",
          "\N{OBJECT REPLACEMENT CHARACTER}passage\N{OBJECT REPLACEMENT CHARACTER}")  # fmt: skip
#: A constant date for chat templates with the date, so that prompts do not change from day to day.
_SAME_DAY = "{%- macro strftime_now(style) %}01 Jan 2025{% endmacro -%}"
#: Minimum of tokens for the texts of a pair.
_LEAST_ROOM = 16


class YesOrNo(nn.Module):
    """Log-odds of yes: log Σ p(tokens that say yes) − log Σ p(tokens that say no), of the token after the prompt.

    It replaces a sequence classifier with one output. Inputs are padded after their end, to which a causal model does
    not attend.

    Source: the score of Qwen3-Reranker (Zhang et al., 2025, arXiv 2506.05176), whose two words are a token each.

    Args:
        model: causal language model of Hugging Face.
        tokenizer: tokenizer of the model.
        name: name of the checkpoint, for messages.

    Raises:
        ModelError: the tokenizer has no token for one of the words.
    """

    yes: Tensor
    no: Tensor

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        super().__init__()
        self.model = model
        vocabulary = tokenizer.get_vocab()
        for word in WORDS:
            ids = sorted(at for token, at in vocabulary.items() if plain_word(token) == word)
            if not ids:
                raise ModelError(
                    f"the tokenizer of {name} has no token {word!r}: raydr needs a model that answers yes or no"
                )
            self.register_buffer(word, torch.tensor(ids), persistent=False)

    @classmethod
    def load(
        cls, checkpoint: str | Path, trust_remote_code: bool, dtype: torch.dtype | str, max_length: int, setting: str
    ) -> YesOrNo:
        """Load a language model.

        Args:
            checkpoint: folder or hub name.
            trust_remote_code: whether code of the checkpoint may run.
            dtype: dtype of the weights; ``auto`` keeps the saved dtype.
            max_length: maximum of tokens of an input.
            setting: key of ``max_length``, for messages.

        Raises:
            OSError, ValueError: the checkpoint cannot be loaded.
            ModelError: the checkpoint is no language model.
            ConfigError: the checkpoint has fewer positions than ``max_length``.
        """
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        extra: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        config = AutoConfig.from_pretrained(checkpoint, **extra)
        check_shape(config, f"the language model {checkpoint}")
        kinds = config.architectures or ["model of unknown kind"]
        if not any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds):
            raise ModelError(
                f"{checkpoint} is a {', '.join(kinds)}; expected a causal language model of texts alone (others can be "
                "served, for the judges language_model)"
            )
        positions = getattr(config, "max_position_embeddings", None) or max_length
        if max_length > positions:
            raise ConfigError(f"{setting} is {max_length}, but {checkpoint} has positions for {positions} tokens only")
        model, _ = load_network(
            AutoModelForCausalLM.from_pretrained,
            str(checkpoint),
            f"the language model {checkpoint}",
            dtype=dtype,
            **extra,
        )
        scorer = cls(model.eval(), AutoTokenizer.from_pretrained(checkpoint, **extra), str(checkpoint))
        scorer._require_plain_logits(str(checkpoint))
        return scorer

    @property
    def config(self) -> Any:
        return self.model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return the log-odds as ``logits`` of shape (N, 1), of N padded inputs (N, L)."""
        states_NLD = self.model.base_model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        last_N = attention_mask.sum(dim=1) - 1
        last_ND = states_NLD[torch.arange(len(last_N), device=last_N.device), last_N]
        yes_N, no_N = (self._logits(last_ND, getattr(self, word)).logsumexp(dim=1) for word in WORDS)
        return SimpleNamespace(logits=(yes_N - no_N)[:, None])

    def _logits(self, states_ND: Tensor, ids: Tensor) -> Tensor:
        """Compute logits of some tokens, in float32: bfloat16 would round away the difference of two answers."""
        head = self.model.get_output_embeddings()
        with torch.autocast(states_ND.device.type, enabled=False):
            logits: Tensor = states_ND.float() @ head.weight[ids].float().T
            bias = getattr(head, "bias", None)
            if bias is not None:
                logits = logits + bias[ids].float()
        cap = getattr(self.config, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits

    @torch.no_grad()
    def _require_plain_logits(self, name: str) -> None:
        """Refuse an architecture that computes logits from the last states in another way than :meth:`_logits`."""
        ids = torch.cat([self.yes, self.no])
        states_KD = self.model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        expected = self.model(input_ids=ids[None], use_cache=False).logits[0, -1, ids].float()
        near = 0.02 * float(expected.abs().max())
        if not torch.allclose(self._logits(states_KD[-1:], ids)[0], expected, rtol=0.02, atol=near):
            raise ModelError(
                f"{name}, a {type(self.model).__name__}, scales its logits in another way than raydr: serve it, and "
                "name the endpoint"
            )

    @torch.no_grad()
    def share_of_words(self, tokens: Tokens) -> float:
        """Compute p(yes) + p(no) after a tokenised prompt: the probability of a yes-or-no answer."""
        ids = torch.from_numpy(tokens.ids.astype(np.int64))[None].to(self.yes.device)
        probability_V = self.model(input_ids=ids, use_cache=False).logits[0, -1].float().softmax(dim=0)
        return float(probability_V[torch.cat([self.yes, self.no])].sum())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the language model as it was loaded."""
        self.model.save_pretrained(folder)


class PromptTokenizer:
    """Tokenizer of queries and passages in prompts; it cuts long texts, never the prompt.

    Special tokens in a query or passage, such as the end of a message, are tokenised as text.

    Args:
        tokenizer: fast tokenizer of a language model.
        prompt: messages to the model.
        max_length: maximum of tokens of a prompt.
        name: name of the checkpoint, for messages.

    Raises:
        ModelError: the chat template changes the messages, or the tokens of a prompt's pieces differ from those of the
            whole prompt.
        ConfigError: the prompt leaves too few tokens for the texts.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int, name: str) -> None:
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None:
            whole = "\n\n".join(message["content"] for message in prompt.messages(*_MARKS)) + "\nAnswer:"
        else:
            whole = _filled_template(tokenizer, prompt, name)
        if any(whole.count(mark) != 1 for mark in _MARKS):
            raise ModelError(f"the chat template of {name} does not show both texts once: {whole[:300]!r}")
        #: Query (0) and passage (1), in the order of the prompt.
        self.order = sorted((0, 1), key=lambda at: whole.index(_MARKS[at]))
        first, second = (_MARKS[at] for at in self.order)
        before, rest = whole.split(first)
        between, after = rest.split(second)
        #: Spaces before the texts: byte-level tokenizers join a space and the next word in a token.
        self.spaces = [piece[len(piece.rstrip(" ")) :] for piece in (before, between)]
        before, between = before.rstrip(" "), between.rstrip(" ")
        start = tokenizer(before, add_special_tokens=tokenizer.chat_template is None)["input_ids"]
        if start and start[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id) and tokenizer.chat_template is None:
            start = start[:-1]
        self.pieces = [start, *(tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in (between, after))]
        self.room = max_length - sum(map(len, self.pieces))
        if self.room < _LEAST_ROOM:
            raise ConfigError(
                f"the prompt to {name} takes {max_length - self.room} tokens and max_length is {max_length}: raise it "
                f"to {max_length - self.room + _LEAST_ROOM} at least"
            )

        whole = tokenizer(whole.replace(_MARKS[0], "x").replace(_MARKS[1], "x"), add_special_tokens=False)["input_ids"]
        sample = self(["x"], ["x"]).ids.tolist()
        if sample[len(sample) - len(whole) :] != whole:
            raise ModelError(
                f"the tokenizer of {name} makes other tokens of the prompt's pieces than of the whole: put each text "
                "on its own line in prompt.user, or serve the model, and name the endpoint"
            )

    def __call__(self, queries: Sequence[str], passages: Sequence[str]) -> Tokens:
        """Tokenise the prompts of N pairs; the longer text of a pair is cut until both fit."""
        texts = (queries, passages)
        both = [self._ids(texts[at], space) for at, space in zip(self.order, self.spaces, strict=True)]
        rows, num_cut = [], 0
        start, between, after = self.pieces
        for pair in zip(*both, strict=True):
            lengths = list(map(len, pair))
            half = self.room // 2
            limits = [min(own, max(half, self.room - other)) for own, other in zip(lengths, lengths[::-1], strict=True)]
            num_cut += limits != lengths
            first, second = (ids[:limit] for ids, limit in zip(pair, limits, strict=True))
            rows.append(np.array([*start, *first, *between, *second, *after], dtype=np.int32))
        lengths_N = np.array([len(row) for row in rows], dtype=np.int64)
        return Tokens(np.concatenate(rows), offsets_of(lengths_N), lengths_N.astype(np.int32), num_cut)

    def _ids(self, texts: Sequence[str], space: str) -> list[list[int]]:
        unique = list(dict.fromkeys(texts))
        spaced = [space + text for text in unique]
        token_ids = self.tokenizer(spaced, add_special_tokens=False, split_special_tokens=True, verbose=False)[
            "input_ids"
        ]
        of_text = dict(zip(unique, token_ids, strict=True))
        return [of_text[text] for text in texts]


def _filled_template(tokenizer: Any, prompt: PromptConfig, name: str) -> str:
    from jinja2 import TemplateError

    try:
        filled = tokenizer.apply_chat_template(
            prompt.messages(*_MARKS),
            tokenize=False,
            add_generation_prompt=True,
            chat_template=_SAME_DAY + tokenizer.get_chat_template(),
            **prompt.template,
        )
    except TemplateError as error:
        raise ModelError(
            f"the chat template of {name} refuses the prompt ({error}). If it knows no system message, put the words "
            "of prompt.system into prompt.user and leave prompt.system empty"
        ) from None
    return str(filled)
