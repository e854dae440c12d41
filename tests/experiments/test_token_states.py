"""A table of states in the place of an encoder: the same vectors, and only what comes after them learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from artefacts import make_corpus, make_dataset
from conftest import make_sentence

from experiments.live_encoder import LiveEncoder
from experiments.token_states import TokenStates, make_states
from raydr.errors import ConfigError, DataError
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from tests.made_stage import make

NUM = 12


def config(checkpoint: str, **model: Any) -> ModelConfig:
    sides = {"query": {"max_length": 16}, "passage": {"max_length": 16}}
    return ModelConfig.model_validate(
        {"checkpoint": checkpoint, "similarity": "dot", "towers": "two", **sides, **model}
    )


@pytest.fixture
def texts() -> list[str]:
    """Of different lengths; the last ones are cut."""
    return [make_sentence(at, 3 + 2 * at) for at in range(NUM)]


@pytest.fixture
def states(tmp_path: Path, texts: list[str], tiny_checkpoint: str) -> TokenStates:
    """Passages have a title and are queries too."""
    passages = [{"passage_id": f"p{at}", "title": "alpha", "text": one} for at, one in enumerate(texts)]
    corpus = make_corpus(tmp_path / "corpus", passages)
    queries = [{"query_id": f"q{at}", "text": one} for at, one in enumerate(texts)]
    dataset = make_dataset(tmp_path / "dataset", corpus, {"queries": {"train": queries}})
    made = make(
        tmp_path / "states", "states", make_states, dataset.artifact, corpus.artifact,
        model=config(tiny_checkpoint), splits=["train"],
    )  # fmt: skip
    return TokenStates.of(made)


@pytest.mark.parametrize("score", ["dual", "sum_of_max", {"name": "multi", "vectors": "codes"}, "poly"])
def test_vectors_are_those_of_the_encoder(
    score: Any, states: TokenStates, texts: list[str], tiny_checkpoint: str
) -> None:
    told = config(tiny_checkpoint, score=score, projection=8)
    frozen, live = states.model(told, seed=1), DualEncoder.from_config(told, seed=1).eval()
    missing, unexpected = live.load_state_dict(frozen.state_dict(), strict=False)
    assert not unexpected
    assert all(".backbone." in name for name in missing)
    one = LiveEncoder(frozen, states.tokenizers(), torch.float32)
    other = LiveEncoder(live, build_tokenizers(told), torch.float32)
    titles = ["alpha"] * NUM
    # States are kept in half precision.
    for side, those in (("query", None), ("passage", titles)):
        np.testing.assert_allclose(one.encode(side, those, texts), other.encode(side, those, texts), atol=2e-2)
        assert np.abs(one.encode(side, those, texts)).max() > 0.1


def test_the_first_projection_keeps_most_of_all_inner_products(states: TokenStates, tiny_checkpoint: str) -> None:
    hidden = states.states_TH.shape[1]
    model = states.model(config(tiny_checkpoint, projection=hidden // 2), seed=0)
    weight = model.tower("query").projection.weight  # type: ignore[union-attr]
    torch.testing.assert_close(weight @ weight.T, torch.eye(hidden // 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(weight, model.tower("passage").projection.weight)  # type: ignore[union-attr]
    states_TH = torch.from_numpy(states.states_TH.astype(np.float32))
    left = (states_TH @ weight.T).square().sum() / states_TH.square().sum()
    assert hidden // 2 == 16
    assert left > 0.9
    # Codes and projections are all that learns.
    assert {name.rpartition(".")[2] for name, _ in model.named_parameters()} == {"weight", "bias"}
    assert len(list(model.parameters())) == 4


def test_what_has_no_states_or_would_not_learn_is_refused(
    states: TokenStates, texts: list[str], tiny_checkpoint: str
) -> None:
    with pytest.raises(DataError, match="states of 1 texts of side query are not there, the first is 'unseen'"):
        states.tokenizers()["query"](None, [texts[0], "unseen"])
    with pytest.raises(DataError, match="states of 12 texts of side passage"):
        # A passage without its title is another text.
        states.tokenizers()["passage"](None, texts)
    for wrong in ({"projection": None}, {"projection": 1000}, {"projection": 8, "towers": "shared"}):
        with pytest.raises(ConfigError, match=r"model\.towers must be two and model\.projection a width"):
            states.model(config(tiny_checkpoint, **wrong), seed=0)
