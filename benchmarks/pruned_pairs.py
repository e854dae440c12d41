"""A trial of dynamic pruning: after all pairs were seen once, does a chosen half teach as much as any half, or all?

The pairs are seen once, in parts; then further parts are drawn by what the model made of each pair when it last saw it,
its log-probability among the passages of its batch, which costs nothing to know: ``random`` without regard to it,
``hard`` those of a low one first, ``easy`` those of a high one first (what OPERA, arXiv:2603.17205, prefers). Draws are
without replacement, with weights that leave every pair a chance; the rules share the state after the first pass, the
learning rate falls to 0 with the last step. ``--keep 1 --more 0`` trains plainly, a measure after the last epoch.

R@20 and RR@10 of the dev queries are over their judged passages and ``train.dev.random_passages`` random ones.

    python -m benchmarks.pruned_pairs configs/openqa-wiki.yaml --set model.num_layers=2 --seeds 1 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import write_report
from raydr import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.graph.session import open_session
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.store.artifact import Artifact
from raydr.training.batches import Batch, BatchMaker, epoch_order
from raydr.training.checkpoint import Progress, Save
from raydr.training.detection import PairFlags
from raydr.training.dev import DevRetrieval
from raydr.training.learner import Learner
from raydr.training.run import TrainingInputs, build_setup
from raydr.training.scoring import BatchView
from raydr.training.trainer import Trainer

MEASURES = ["R@20", "RR@10"]
#: By rule, the sign of a pair's log-probability in the weight of its draw.
RULES = {"random": 0.0, "hard": -1.0, "easy": 1.0}


class PartsOfPairs(BatchMaker):
    """Epochs of a part of the pairs: all parts of one order first, then parts that a rule chooses."""

    def __init__(self, whole: BatchMaker, num_parts: int, rule: str) -> None:
        super().__init__(whole.examples, whole.corpus, whole.tokenizers, whole.config, whole.seed, 0, 1)
        self.num_parts = num_parts
        self.rule = rule
        self.num_steps = whole.num_steps // num_parts
        #: Log-probability of each pair's positive when it was last in a batch, and how that was after the first pass.
        self.seen_N = np.full(len(whole.examples), np.nan)
        self.seen_first_N = self.seen_N

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[list[Batch]]:
        rows, size = self.rows(epoch), self.config.batch_size
        for step in range(first_step, self.num_steps):
            yield [self.make(rows[step * size : (step + 1) * size], epoch)]

    def rows(self, epoch: int) -> NDArray[np.int64]:
        """The pairs of an epoch, in the order of its batches."""
        size = self.num_steps * self.config.batch_size
        if epoch < self.num_parts:
            return epoch_order(len(self.examples), self.seed, 0)[epoch * size : (epoch + 1) * size]
        if epoch == self.num_parts:
            self.seen_first_N = self.seen_N.copy()
        # What the last, incomplete batch left out was not seen.
        seen_N = np.nan_to_num(self.seen_N, nan=float(np.nanmean(self.seen_N)))
        ranks_N = np.argsort(np.argsort(seen_N)) / len(seen_N)
        rng = np.random.default_rng([self.seed, epoch])
        keys_N = 4 * RULES[self.rule] * ranks_N + rng.gumbel(size=len(ranks_N))
        return rng.permutation(np.argsort(-keys_N)[:size])


class WatchingTrainer(Trainer):
    """Notes what the model makes of each pair on its way."""

    def view(self, learner: Learner, batch: Batch) -> BatchView:
        view = super().view(learner, batch)
        with torch.no_grad():
            seen = view.candidates()
            scores_QC = seen.scores_QC.masked_fill(seen.excluded_QC, -torch.inf)
            own_Q = scores_QC.gather(1, seen.positive_Q.unsqueeze(1)).squeeze(1)
            batches = self.setup.batches
            assert isinstance(batches, PartsOfPairs)
            batches.seen_N[batch.query_rows] = (own_Q - scores_QC.logsumexp(dim=1)).numpy()
        return view


class KeepFirstPass:
    """A listener that keeps the state after the first pass over the pairs."""

    def __init__(self, folder: Path, num_parts: int) -> None:
        self.folder = folder
        self.num_parts = num_parts

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Nothing to do."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Nothing to do."""

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        if progress.epoch == self.num_parts and not progress.step:
            copy()(self.folder)


@dataclass(frozen=True)
class Trial:
    """What is trained on and with.

    Args:
        config: the run, of so many epochs as there are parts in all.
        data: the data set.
        corpus: its corpus.
        mined: candidates, where there are hard negatives.
        num_parts: of the first pass over the pairs.
    """

    config: RunConfig
    data: Dataset
    corpus: Corpus
    mined: Artifact | None
    num_parts: int

    def run(self, seed: int, rules: list[str]) -> dict[str, dict[str, float]]:
        """Train once by each rule, all from the same state after the first pass; returns measures and seconds."""
        found = {}
        with tempfile.TemporaryDirectory(prefix="pruned-") as scratch:
            seen_N: NDArray[np.float64] | None = None
            for rule in rules:
                trainer, batches = self.trainer(seed, rule, KeepFirstPass(Path(scratch), self.num_parts))
                if seen_N is not None:
                    trainer.resume(Path(scratch))
                    batches.seen_N = seen_N.copy()
                started = time.perf_counter()
                trainer.run()
                seen_N = batches.seen_first_N
                found[rule] = {"seconds": time.perf_counter() - started, **self.measure(trainer)}
                print(f"seed {seed} {rule}: {found[rule]}", flush=True)
        return found

    def trainer(self, seed: int, rule: str, listener: KeepFirstPass) -> tuple[WatchingTrainer, PartsOfPairs]:
        train = self.config.train
        tables = self.data.training_tables(self.config.data.train_split, self.mined)
        model = DualEncoder.from_config(self.config.model, seed)
        dtype = torch_dtype(resolve_dtype(train.dtype, "cpu")[0])
        inputs = TrainingInputs(self.corpus, tables, None)
        setup = build_setup(train, seed, model, build_tokenizers(self.config.model), inputs, dtype, listener)
        batches = PartsOfPairs(setup.batches, self.num_parts, rule)
        return WatchingTrainer(replace(setup, batches=batches)), batches

    def measure(self, trainer: Trainer) -> dict[str, float]:
        setup, dev_split = trainer.setup, self.config.data.dev_split
        tables = self.data.training_tables(dev_split)
        dev = DevRetrieval(tables, self.corpus, setup.batches.tokenizers, self.config.train.dev, self.config.seed)
        ranking = dev.rank_passages(setup.model, setup.dtype, 100)
        assert ranking is not None
        values = score_queries(parse_measures(MEASURES, "measures"), dev.dev.qrels, ranking)
        return {name: float(np.mean(list(by_query.values()))) for name, by_query in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--parts", type=int, default=2, help="parts of the first pass; a part is what is drawn later")
    parser.add_argument("--more", type=int, default=1, help="parts that are drawn after it")
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--workdir", default="", help="where the data are kept; a folder that is removed if left out")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pruned-") as scratch:
        settings = [
            *arguments.overrides,
            f"workdir={arguments.workdir or Path(scratch) / 'work'}",
            "tracking.enabled=false",
            f"train.num_epochs={arguments.parts + arguments.more}",
        ]
        config = RunConfig.load(arguments.config, settings)
        with open_session(config) as session:
            wanted = [session.recipe.dataset(), session.recipe.corpus()]
            if config.train.num_hard_negatives:
                wanted.append(session.recipe.candidates(config.data.train_split))
            dataset, corpus, *mined = session.make(*wanted)
        trial = Trial(config, Dataset(dataset), Corpus(corpus), next(iter(mined), None), arguments.parts)
        figures = {str(seed): trial.run(seed, arguments.rules) for seed in arguments.seeds}
    write_report(arguments.json, "pruned_pairs", vars(arguments), figures)


if __name__ == "__main__":
    main()
