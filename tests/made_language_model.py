"""A language model of two layers with a tokenizer of bytes and a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

#: ChatML, as Qwen, SmolLM and others have it.
TEMPLATE = (
    "{% for one in messages %}<|im_start|>{{ one.role }}\n{{ one.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_language_model(
    folder: Path, kind: Literal["qwen3", "gpt2"] = "qwen3", template: str | None = TEMPLATE, words: str = "yes no"
) -> str:
    """A folder with weights as they were drawn.

    Args:
        folder: where.
        kind: of the architecture; ``gpt2`` learns its positions, 512 of them.
        template: of chats; none if None.
        words: that get tokens of their own.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[*CONTROL], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([f"{words} {words.title()} {words}"] * 20, trainer)
    extra: dict[str, Any] = {"bos_token": CONTROL[0], "eos_token": CONTROL[2], "extra_special_tokens": [CONTROL[1]]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **extra)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(0)
    if kind == "gpt2":
        GPT2LMHeadModel(GPT2Config(**sizes, n_embd=32, n_layer=2, n_head=2, n_positions=512)).save_pretrained(folder)
    else:
        Qwen3ForCausalLM(
            Qwen3Config(
                **sizes, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, tie_word_embeddings=True,
            )
        ).save_pretrained(folder)  # fmt: skip
    return str(folder)
