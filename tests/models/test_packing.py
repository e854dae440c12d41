"""Batches without padding give the vectors of padded ones."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raydr.data.embeddings import VectorSets
from raydr.errors import ModelError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.inference import InferenceEncoder, encode_tokens
from raydr.models.packed_attention import use_packed_attention
from raydr.models.packed_tower import PackedTower, RecordedPasses
from raydr.models.packing import PackedTexts, pack, plan_packs
from raydr.models.tokens import Tokens
from tests.conftest import make_sentence
from tests.made import tokens_from_lists

TITLES = [make_sentence(at, 3) if at % 3 else "" for at in range(40)]
TEXTS = [make_sentence(at, 1 + at % 17) for at in range(40)]
VARIANTS: dict[str, dict[str, Any]] = {
    "mean, cosine": {},
    "cls, dot": {"pooling": "cls", "similarity": "dot", "scale": 1},
    "last": {"pooling": "last"},
    "projection": {"projection": 8, "similarity": "dot"},
    "title as first segment": {"title": "pair"},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "multi": {"score": {"name": "multi", "num_vectors": 5}},
    "multi, codes": {"score": {"name": "multi", "vectors": "codes"}},
    "sum of max": {"score": "sum_of_max"},
}


def saved(folder, checkpoint: str, **changes: Any) -> str:
    config = ModelConfig.model_validate({"checkpoint": checkpoint, "passage": SideConfig(max_length=24), **changes})
    DualEncoder.from_config(config, seed=1).save(folder, build_tokenizers(config))
    return str(folder)


KINDS = ("camembert", "electra", "llama", "mistral", "modernbert", "mpnet", "qwen2", "qwen3", "roberta", "xlm-roberta")


def checkpoint_of(kind: str, folder: Path, tiny_checkpoint: str) -> str:
    """A small encoder of a kind, with the same tokenizer.

    Qwen's layers share keys between heads; those of ModernBERT, Mistral and Qwen see a few tokens far.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    few: dict[str, dict[str, Any]] = {
        "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
        "mistral": {"sliding_window": 4, "num_key_value_heads": 2},
        "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_key_value_heads": 1},
        "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    }
    torch.manual_seed(0)
    pad_id = 1 if kind == "mpnet" else tokenizer.pad_token_id
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=130, pad_token_id=pad_id,
        bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3, initializer_range=0.2, **few.get(kind, {}),
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def load_texts(config: ModelConfig) -> Tokens:
    return build_tokenizers(config)["passage"](TITLES, TEXTS)


def both(folder: str, dtype: str = "float32", device: str = "cpu", budget: int = 64) -> list[np.ndarray]:
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    return [
        InferenceEncoder(folder, "passage", dtype, device, budget, 1, batching).encode(tokens).astype(np.float32)
        for batching in ("padded", "packed")
    ]


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("budget", [10, 64, 10_000])
def test_the_same_vectors_as_with_padding(variant, budget, tmp_path, tiny_checkpoint):
    padded, packed = both(saved(tmp_path / "model", tiny_checkpoint, **VARIANTS[variant]), budget=budget)
    # The last digit of half precision.
    np.testing.assert_allclose(packed, padded, atol=2e-3)
    assert np.abs(padded).sum(axis=1).min() > 0.1


@pytest.mark.invariant
@pytest.mark.parametrize("variant", SEVERAL)
def test_the_same_several_vectors_as_with_padding(variant, tmp_path, tiny_checkpoint):
    folder = saved(tmp_path / "model", tiny_checkpoint, **SEVERAL[variant])
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    padded, packed = (
        InferenceEncoder(folder, "passage", "float32", "cpu", 64, 1, batching).encode(tokens)
        for batching in ("padded", "packed")
    )
    assert isinstance(padded, VectorSets)
    assert isinstance(packed, VectorSets)
    assert packed.lengths.tolist() == padded.lengths.tolist()
    most = {"multi": 5, "multi, codes": 8, "sum of max": int(tokens.lengths.max())}[variant]
    assert padded.lengths.max() == most
    np.testing.assert_allclose(packed.vectors_TD, padded.vectors_TD, atol=2e-3)


@pytest.mark.invariant
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_every_kind_gives_the_vectors_of_its_padded_texts(kind, rounded, tmp_path, tiny_checkpoint):
    """Also in shapes that are rounded up, whose last tokens belong to no text."""
    checkpoint = tiny_checkpoint if kind == "bert" else checkpoint_of(kind, tmp_path, tiny_checkpoint)
    config = ModelConfig(checkpoint=checkpoint, passage=SideConfig(max_length=24))
    towers = [DualEncoder.from_config(config, seed=1).tower("passage").ready("cpu", torch.float32) for _ in range(2)]
    tokens, rows = load_texts(config), np.array([3, 1, 7, 30, 2, 39])
    padded = encode_tokens(towers[0], tokens, 64, 0, "passage")[rows]
    first = use_packed_attention(towers[1].backbone, "cpu", torch.float32)
    with torch.inference_mode():
        packed = towers[1].encode_packed(pack(tokens, rows, first, rounded), "passage")[: len(rows)].numpy()
    np.testing.assert_allclose(packed, padded, atol=1e-4)
    assert np.abs(padded[0] - padded[1]).max() > 1e-3


@pytest.mark.parametrize("kind", ["llama", "mistral", "modernbert", "qwen2", "qwen3"])
def test_rotary_positions_stay_exact_in_bfloat16(kind, tmp_path, tiny_checkpoint):
    """Rounded frequencies would turn a far token by a large part of a radian."""
    config = ModelConfig(checkpoint=checkpoint_of(kind, tmp_path, tiny_checkpoint))
    exact, kept, rounded = (DualEncoder.from_config(config, seed=1).tower("passage") for _ in range(3))
    kept.ready("cpu", torch.bfloat16)
    rounded.to(torch.bfloat16)

    def farthest_turn(tower: torch.nn.Module) -> float:
        pairs = zip(exact.named_buffers(), tower.named_buffers(), strict=True)
        return max(
            100 * float((buffer - other.float()).abs().max())
            for (name, buffer), (_, other) in pairs
            if "inv_freq" in name
        )

    assert next(kept.parameters()).dtype == torch.bfloat16
    assert farthest_turn(kept) == 0
    assert farthest_turn(rounded) > 0.01


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_a_pass_reads_nothing_from_its_device(kind, pooling, tmp_path, tiny_checkpoint):
    """Of the device ``meta`` nothing can be read, as in a recording on a GPU; all that is copied goes to it."""
    checkpoint = tiny_checkpoint if kind == "bert" else checkpoint_of(kind, tmp_path, tiny_checkpoint)
    config = ModelConfig(checkpoint=checkpoint, passage=SideConfig(max_length=24), pooling=pooling)
    tower = DualEncoder.from_config(config, seed=1).tower("passage").ready("cpu", torch.float32).to("meta")
    tokens = load_texts(config)
    made = list(PackedTower(tower, "passage", "meta", torch.float32).encode(tokens, 64))
    assert sorted(np.concatenate([rows for rows, _ in made]).tolist()) == list(range(tokens.num_rows))
    for rows, vectors in made:
        assert (vectors.device.type, vectors.shape) == ("meta", (len(rows), tower.dim))


class Recording(TorchDispatchMode):
    """Stands for a CUDA graph: what is computed within is kept, and computed again in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.num_replays = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        self.num_replays += 1
        for func, args, kwargs, result in self.calls:
            result.copy_(func(*args, **kwargs))

    def pool(self) -> None:
        return None


def test_each_call_of_a_recorded_pass_has_the_vectors_of_its_own_texts(monkeypatch):
    recordings: list[Recording] = []
    stream = MagicMock()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: recordings.append(Recording()) or recordings[-1])
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **kwargs: graph)
    words = torch.randn(50, 3)

    def forward(texts: PackedTexts) -> torch.Tensor:
        states = words[texts.input_ids_1T[0]]
        return torch.segment_reduce(states, "mean", offsets=texts.starts_N1.long(), axis=0, unsafe=True)

    tokens = tokens_from_lists([[1, 2, 3], [4], [5, 6], [7, 8], [9], [10, 11, 12, 13]])
    passes = RecordedPasses(forward)
    batches = [pack(tokens, np.array(rows)) for rows in ([0, 1], [2, 3], [1, 0], [3, 2], [5], [5])]
    made = [passes(texts) for texts in batches]
    # Three shapes come again; each is recorded once, at its second call.
    assert [recording.num_replays for recording in recordings] == [1, 1, 1]
    for vectors, texts in zip(made, batches, strict=True):
        torch.testing.assert_close(vectors, forward(texts))


@pytest.mark.invariant
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_the_same_vectors_on_a_gpu(kind, dtype, tmp_path, tiny_checkpoint):
    checkpoint = tiny_checkpoint if kind == "bert" else checkpoint_of(kind, tmp_path / kind, tiny_checkpoint)
    folder = saved(tmp_path / "model", checkpoint)
    exact, _ = both(folder)
    for vectors in both(folder, dtype, "cuda"):
        np.testing.assert_allclose(vectors, exact, atol=3e-2)


@pytest.mark.invariant
@pytest.mark.gpu
def test_passes_that_are_recorded_give_the_same_each_time(tmp_path, tiny_checkpoint):
    """Each shape once plainly, then recorded, then played; the batches of a call are not played into each other."""
    folder = saved(tmp_path / "model", tiny_checkpoint)
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    encoder = InferenceEncoder(folder, "passage", "bfloat16", "cuda", 64, None, "packed")
    first, *others = (encoder.encode(tokens) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_texts_are_laid_one_after_the_other():
    tokens = tokens_from_lists([[1, 2, 3], [4], [5, 6]])
    packed = pack(tokens, np.array([2, 0]), first_position=2)
    assert packed.input_ids_1T.tolist() == [[5, 6, 1, 2, 3]]
    assert packed.position_ids_1T.tolist() == [[2, 3, 2, 3, 4]]
    assert packed.starts_N1.tolist() == [0, 2, 5]
    assert packed.longest == 3


def test_every_text_is_in_one_pack_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 60, size=200)
    groups = plan_packs(lengths, 100)
    assert sorted(np.concatenate(groups).tolist()) == list(range(200))
    assert max(lengths[group].sum() for group in groups) <= 100
    assert [len(group) for group in plan_packs(np.array([500, 1]), 100)] == [1, 1]


def test_encoders_that_cannot_are_refused():
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

    other = DistilBertModel(DistilBertConfig(vocab_size=10, dim=8, n_layers=1, n_heads=1, hidden_dim=8))
    with pytest.raises(ModelError, match="can do, but this one is a distilbert: set encode.batching=padded"):
        use_packed_attention(other, "cpu", torch.float32)
    with pytest.raises(ModelError, match="needs bfloat16 or float16 on a GPU"):
        use_packed_attention(
            BertModel(
                BertConfig(
                    vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
                )
            ),
            "cuda",
            torch.float32,
        )
