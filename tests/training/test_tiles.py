"""A loss in tiles is the loss of the whole batch, and never holds the matrix of all scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raydr.errors import ConfigError
from raydr.training.scoring import loss_in_tiles
from training.harness import make_trainer, model_config, run_alone, run_with_ranks
from training.test_gradient_cache import LOSSES, SMALL, TRAIN

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: LOSSES[name] for name in ("nce", "rcl", "npc")},
    "bce": {"loss": "bce"},
    "in pieces too": SMALL,
    "nested dimensions": {"matryoshka_dims": [8, 32], **LOSSES["npc"]},
}


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_in_tiles_equals_training_whole(variant: str, tiny_data: Any, tiny_checkpoint: str) -> None:
    config = model_config(tiny_checkpoint, dropout=0.1)
    whole, weights = run_alone(tiny_data, config, TRAIN | VARIANTS[variant])
    tiled, tiled_weights = run_alone(tiny_data, config, TRAIN | VARIANTS[variant] | {"tile_queries": 3})
    for epoch, other in zip(whole.history, tiled.history, strict=True):
        expected = {name: value for name, value in epoch.metrics.items() if "seconds" not in name}
        assert {name: other.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-6)
    for name, tensor in weights.items():
        torch.testing.assert_close(tiled_weights[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.invariant
def test_two_ranks_in_tiles_equal_one_whole(tiny_data: Any, tiny_checkpoint: str, tmp_path: Any) -> None:
    config = model_config(tiny_checkpoint, towers="two")
    _, weights = run_alone(tiny_data, config, TRAIN)
    _, shared = run_with_ranks(2, tmp_path, tiny_data, config, TRAIN | {"tile_queries": 2})
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


class Largest(TorchDispatchMode):
    """Most rows of any matrix of scores that is made inside: one with a column for each of the passages."""

    def __init__(self, passage_CD: Tensor) -> None:
        super().__init__()
        self.num_columns, self.dims = passage_CD.shape
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for output in made if isinstance(made, tuple | list) else (made,):
            # The passages' vectors, on their side, have as many columns.
            if (
                isinstance(output, Tensor)
                and output.ndim == 2
                and (output.shape[0] != self.dims)
                and output.shape[1] == self.num_columns
            ):
                self.most = max(self.most, output.shape[0])
        return made


@pytest.mark.parametrize(("tile", "most"), [(None, 8), (3, 3)])
def test_only_a_tile_of_scores_is_held(tile: int | None, most: int, tiny_data: Any, tiny_checkpoint: str) -> None:
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    learner, [batch] = trainer.learner, next(trainer.batches.epoch(0))
    view = learner.encode(batch)
    with Largest(view.student.passage_CD) as seen:
        loss = loss_in_tiles(view, trainer.config.loss, 0, 8, tile).per_query_Q.mean()
        torch.autograd.grad(loss, [view.student.query_QD, view.student.passage_CD])
    assert seen.most == most


def test_a_nested_loss_is_that_of_sentence_transformers(tiny_data: Any, tiny_checkpoint: str) -> None:
    """Σ_d of the loss of the first d dimensions at length 1, as its MatryoshkaLoss cuts them."""
    from sentence_transformers.sentence_transformer.losses.matryoshka import shrink

    config = model_config(tiny_checkpoint)
    trainer = make_trainer(tiny_data, config, TRAIN)
    [batch] = next(trainer.batches.epoch(0))
    view, dims = trainer.learner.encode(batch), [4, 16, 32]
    mine = loss_in_tiles(view, trainer.config.loss, 0, 8, None, dims).per_query_Q
    candidates, expected_Q = view.candidates(), torch.zeros(8)
    for dim in dims:
        scores_QC = config.scale * shrink(view.student.query_QD, dim) @ shrink(view.student.passage_CD, dim).T
        masked_QC = scores_QC.masked_fill(candidates.excluded_QC, float("-inf"))
        expected_Q = expected_Q + torch.nn.functional.cross_entropy(masked_QC, candidates.positive_Q, reduction="none")
    torch.testing.assert_close(mine, expected_Q, rtol=1e-5, atol=1e-5)
    whole = loss_in_tiles(view, trainer.config.loss, 0, 8, None).per_query_Q
    torch.testing.assert_close(loss_in_tiles(view, trainer.config.loss, 0, 8, None, [32]).per_query_Q, whole)


@pytest.mark.parametrize(
    ("dims", "score", "message"),
    [([64], "dual", "has 64, and the vectors have 32 dimensions"), ([8], "multi", "is for model.score dual")],
)
def test_dimensions_that_there_are_not(
    dims: list[int], score: str, message: str, tiny_data: Any, tiny_checkpoint: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_alone(tiny_data, model_config(tiny_checkpoint, score=score), TRAIN | {"matryoshka_dims": dims})
