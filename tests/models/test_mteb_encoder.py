"""A saved model behind mteb's protocol: its vectors and similarities are the model's own, by the kind of text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import raydr
from raydr.errors import ConfigError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.pair_scoring import DualEncoderScorer

TITLES = ["the water", "", "of a stone", "in the city"]
BODIES = ["is the light and to the sea", "the house was on a hill", "the river", "a long night of the rain in it"]


class PromptType(StrEnum):
    """As mteb has it."""

    query = "query"
    document = "document"


def batches(rows: list[dict[str, str]]) -> DataLoader[Any]:
    """As mteb hands them over: a dict of lists a batch."""
    return DataLoader(rows, batch_size=3, collate_fn=lambda some: {key: [one[key] for one in some] for key in some[0]})


def saved(folder: Path, checkpoint: str, **settings: Any) -> ModelConfig:
    sides = {"query": SideConfig(prefix="the question of ", max_length=12), "passage": SideConfig(max_length=24)}
    config = ModelConfig(checkpoint=checkpoint, title_separator=" in ", **sides, **settings)
    DualEncoder.from_config(config).save(folder, build_tokenizers(config))
    return config


def test_documents_and_queries_are_encoded_as_the_model_has_them(tiny_checkpoint: str, tmp_path: Path) -> None:
    saved(tmp_path, tiny_checkpoint)
    encoder, scorer = raydr.as_mteb(tmp_path, "cpu"), DualEncoderScorer(tmp_path, "float32", "cpu", 512)
    documents = [
        {"id": str(at), "text": f"{title} {body}".strip(), "title": title, "body": body}
        for at, (title, body) in enumerate(zip(TITLES, BODIES, strict=True))
    ]
    mteb_says: dict[str, Any] = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "batch_size": 3}
    passages = encoder.encode(batches(documents), prompt_type=PromptType.document, **mteb_says)
    assert passages.dtype == np.float32
    np.testing.assert_allclose(passages, scorer.encode("passage", TITLES, BODIES), atol=1e-6)
    untitled = [{"text": text} for text in BODIES]
    queries = encoder.encode(batches(untitled), prompt_type=PromptType.query, **mteb_says)
    np.testing.assert_allclose(queries, scorer.encode("query", None, BODIES), atol=1e-6)
    assert np.abs(queries - encoder.encode(batches(untitled), prompt_type=PromptType.document)).max() > 1e-3
    # Tasks that have no kinds of texts.
    np.testing.assert_array_equal(encoder.encode(batches(untitled)), queries)
    torch.testing.assert_close(encoder.similarity(queries, passages), torch.from_numpy(queries @ passages.T))
    pairwise = encoder.similarity_pairwise(torch.from_numpy(queries), passages)
    torch.testing.assert_close(pairwise, torch.from_numpy((queries * passages).sum(axis=1)))
    assert encoder.similarity(queries[0], passages).shape == (1, 4)
    with pytest.raises(ConfigError, match="precision 'int8'"):
        encoder.encode(batches(untitled), precision="int8")


def test_late_interaction_has_its_own_similarity(tiny_checkpoint: str, tmp_path: Path) -> None:
    config = saved(tmp_path, tiny_checkpoint, score="sum_of_max", projection=16)
    encoder = raydr.as_mteb(tmp_path, "cpu")
    queries = encoder.encode(batches([{"text": text} for text in TITLES[2:]]), prompt_type="query")
    passages = encoder.encode(batches([{"text": text} for text in BODIES]), prompt_type="document")
    assert queries.ndim == passages.ndim == 3
    expected = [[_sum_of_max(query, passage) for passage in passages] for query in queries]
    torch.testing.assert_close(encoder.similarity(queries, passages), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert config.score.name == "sum_of_max"


def _sum_of_max(query: Any, passage: Any) -> float:
    of_query, of_passage = (one[np.abs(one).sum(axis=1) > 0] for one in (query, passage))
    return float((of_query @ of_passage.T).max(axis=1).sum())


def test_results_of_another_model_at_the_same_place_are_told_apart(
    tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ModelMeta:
        @staticmethod
        def create_empty(given: dict[str, Any]) -> dict[str, Any]:
            return given

    module = ModuleType("mteb.models.model_meta")
    monkeypatch.setattr(module, "ModelMeta", ModelMeta, raising=False)
    monkeypatch.setattr(module, "ScoringFunction", str, raising=False)
    for name in ("mteb", "mteb.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", module)
    saved(tmp_path / "mine", tiny_checkpoint)
    meta = raydr.as_mteb(tmp_path / "mine", "cpu").mteb_model_meta
    assert (meta["name"], meta["max_tokens"], meta["similarity_fn_name"]) == ("raydr/mine", 24, "cosine")
    assert meta["use_instructions"] is True
    saved(tmp_path / "mine", tiny_checkpoint, similarity="dot")
    other = raydr.as_mteb(tmp_path / "mine", "cpu").mteb_model_meta
    assert other["revision"] != meta["revision"]
    assert other["similarity_fn_name"] == "dot"
