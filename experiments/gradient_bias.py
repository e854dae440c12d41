"""Bias of NCE's gradient relative to the full softmax, by the sampling of negatives, on synthetic data.

A small network learns a peaky distribution over 1,000 labels with ordinary cross-entropy. After each step, the gradient
of the population's cross-entropy is compared with that of NCE with 4 negatives, averaged over 10 draws. Samplers and
losses are raydr's.

    python -m experiments.gradient_bias --out work/experiments/gradient_bias

Source: Zhang and Stratos (NAACL 2021) §6.4, figure 1, and the settings of the authors' code.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.results import Table, write_results
from raydr.losses.base import LOG_DRAW_PROB, Candidates, Loss
from raydr.losses.corrected_nce import CorrectedNCE
from raydr.losses.nce import NCE
from raydr.negatives.samplers.base import CandidateList, Sampler
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.softmax import Softmax
from raydr.pages.figure import COLORS, grid
from raydr.seeding import query_rng

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_LABELS = 1000
WIDTH = 300
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
#: Probability below which labels are left out of the population's loss.
NEGLIGIBLE = 1e-8

FULL = "full softmax"
#: Samplers of negatives, each with its loss; all negatives are random for ``random_share`` 1.
KINDS: dict[str, tuple[Sampler, Loss]] = {
    "random": (Mixed(random_share=1.0), NCE()),
    "mixed-50": (Mixed(random_share=0.5), NCE()),
    "hard": (Softmax(), NCE()),
    "hard, corrected": (Softmax(with_replacement=True), CorrectedNCE()),
}


@dataclass(frozen=True)
class Settings:
    """The size of the experiment."""

    steps: int = 30
    negatives: int = 4
    draws: int = 10
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)


#: Loss and bias of the gradient after each step, by kind of negatives.
Curves = dict[str, dict[str, list[float]]]


class Network(nn.Module):
    """An embedding, a hidden layer with ReLU, and a score for each label."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, NUM_LABELS)

    def forward(self) -> Tensor:
        hidden: Tensor = torch.relu(self.hidden(self.embedding.weight))
        scores: Tensor = self.output(hidden)
        return scores.squeeze(0)


def population(seed: int) -> NDArray[np.float64]:
    """Draw softmax(u / 0.001) with u uniform on [0, 1): about a dozen labels have nearly all probability."""
    logits = query_rng(seed, 0, "population", "gradient bias").random(NUM_LABELS) / 0.001
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def run(seed: int, settings: Settings) -> Curves:
    """Train once; return loss and bias of each kind after each step."""
    probs = population(seed)
    labels = np.flatnonzero(probs > NEGLIGIBLE)
    weights = torch.tensor(probs[labels], dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    curves: Curves = {name: {"loss": [], "bias": []} for name in (FULL, *KINDS)}
    for step in range(settings.steps):
        batch = torch.multinomial(torch.tensor(probs), BATCH_SIZE, replacement=True, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network().expand(BATCH_SIZE, -1), batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        full = -(weights * torch.log_softmax(network(), dim=0)[torch.from_numpy(labels)]).sum()
        exact = gradient(network, full)
        curves[FULL]["loss"].append(float(full.detach()))
        curves[FULL]["bias"].append(0.0)
        for name, (sampler, loss) in KINDS.items():
            value = expected_loss(
                network(), labels, weights, sampler, loss, settings, (seed, step, f"negatives: {name}")
            )
            curves[name]["loss"].append(float(value.detach()))
            curves[name]["bias"].append(float((gradient(network, value) - exact).norm()))
    return curves


def gradient(network: nn.Module, loss: Tensor) -> Tensor:
    """Return the gradient of all parameters as a vector."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])


def expected_loss(
    scores_C: Tensor,
    labels: NDArray[np.int64],
    weights: Tensor,
    sampler: Sampler,
    loss: Loss,
    settings: Settings,
    key: tuple[int, int, str],
) -> Tensor:
    """Compute Σ_y pop(y) · ℓ(y), where ℓ(y) is the mean over draws of the loss of label y against its negatives."""
    scores_LC = scores_C.expand(len(labels), -1)
    return (weights * loss_per_label(scores_LC, labels.tolist(), sampler, loss, settings, key)).sum()


def loss_per_label(
    scores_LC: Tensor,
    labels: Sequence[int],
    sampler: Sampler,
    loss: Loss,
    settings: Settings,
    key: tuple[int, int, str],
) -> Tensor:
    """Compute the mean over draws of the loss of each label against its negatives, shape (L,).

    Args:
        scores_LC: a row of scores for each label.
        labels: the columns of the labels.
        sampler: draws the negatives.
        loss: of a label and its negatives.
        settings: with the numbers of negatives and of draws.
        key: seed, step and purpose of the draws.
    """
    seed, step, purpose = key
    values = scores_LC.detach().double().numpy()
    drawn = [
        negatives
        for row, label in enumerate(labels)
        for negatives in draw_negatives(
            values[row], label, sampler, settings, query_rng(seed, step, str(label), purpose)
        )
    ]
    columns_QC = torch.from_numpy(np.array([columns for columns, _ in drawn]))
    rows_Q = torch.arange(len(labels)).repeat_interleave(settings.draws)
    hard_QC = torch.ones(columns_QC.shape, dtype=torch.bool)
    hard_QC[:, 0] = False
    candidates = Candidates(
        scores_QC=scores_LC[rows_Q.unsqueeze(1), columns_QC],
        positive_Q=torch.zeros(len(columns_QC), dtype=torch.int64),
        excluded_QC=torch.zeros(columns_QC.shape, dtype=torch.bool),
        hard_QC=hard_QC,
        signals={LOG_DRAW_PROB: torch.tensor(np.array([log_probs for _, log_probs in drawn]), dtype=torch.float32)},
    )
    return loss.compute(candidates, epoch=0).per_query_Q.reshape(len(labels), settings.draws).mean(dim=1)


def draw_negatives(
    scores: NDArray[np.float64], label: int, sampler: Sampler, settings: Settings, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield for each draw the label and its negatives, and their log-probabilities (0 if the sampler has none)."""
    others = np.delete(np.arange(len(scores)), label)
    candidates = CandidateList(scores[others])
    for _ in range(settings.draws):
        drawn = sampler.sample(candidates, settings.negatives, rng)
        left = np.delete(others, drawn.indices)
        random = left[rng.choice(len(left), drawn.num_random, replace=False, shuffle=False)]
        log_probs = np.zeros(settings.negatives + 1)
        if drawn.log_draw_prob is not None:
            log_probs[1:] = drawn.log_draw_prob
        yield np.concatenate([[label], others[drawn.indices], random]).astype(np.int64), log_probs


def picture(runs: Sequence[Curves], settings: Settings) -> bytes:
    """Draw loss and bias by step: mean and range over the seeds."""

    def panel(measure: str, names: Sequence[str], ylabel: str) -> Any:
        def draw(axes: Axes) -> None:
            steps = np.arange(1, settings.steps + 1)
            for name in names:
                values = np.array([curves[name][measure] for curves in runs])
                color = COLORS[(FULL, *KINDS).index(name)]
                # Dashed and on top, since the corrected loss coincides with that of the full softmax.
                style: Any = {"linestyle": "--", "zorder": 3} if name == FULL else {}
                axes.plot(steps, values.mean(axis=0), color=color, label=name, **style)
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0)
            axes.set(xlabel="step", ylabel=ylabel, ylim=(0, None))

        return draw

    return grid(
        [
            ("loss of the population", panel("loss", (FULL, *KINDS), "nats")),
            ("bias of the gradient", panel("bias", tuple(KINDS), "norm of the difference")),
        ],
        f"NCE with {settings.negatives} negatives against the full softmax over {NUM_LABELS:,} labels",
        columns=2,
    )


def table(runs: Sequence[Curves], steps: Sequence[int]) -> Table:
    """Return a row for each kind: mean loss and bias over the seeds after some steps."""
    rows = []
    for name in (FULL, *KINDS):
        cells = [name]
        for measure in ("loss", "bias"):
            means = np.array([curves[name][measure] for curves in runs]).mean(axis=0)
            cells += [f"{means[step - 1]:.4f}" for step in steps]
        rows.append(cells)
    columns = ["negatives", *(f"{measure}, step {step}" for measure in ("loss", "bias") for step in steps)]
    return Table(f"Mean over {len(runs)} seeds", columns, rows)


def main() -> None:
    defaults = Settings()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("work/experiments/gradient_bias"))
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--negatives", type=int, default=defaults.negatives)
    parser.add_argument("--draws", type=int, default=defaults.draws)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(defaults.seeds))
    arguments = parser.parse_args()
    settings = Settings(arguments.steps, arguments.negatives, arguments.draws, tuple(arguments.seeds))
    runs = [run(seed, settings) for seed in settings.seeds]
    tables = [table(runs, sorted({1, settings.steps // 3, settings.steps}))]
    figures = {"curves": dict(zip(settings.seeds, runs, strict=True))}
    write_results(arguments.out, asdict(settings), tables, figures, {"gradient_bias.png": picture(runs, settings)})


if __name__ == "__main__":
    main()
