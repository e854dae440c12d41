"""How many passages of a training batch are there twice: what encoding each of them once could save.

Draws the batches that training would draw, positives and hard negatives alike, and compares passages by their content.

    python -m benchmarks.repeated_passages configs/openqa-wiki.yaml --set train.num_hard_negatives=4 --batches 50
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from raydr import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.examples import load_examples
from raydr.graph.session import open_session
from raydr.models.dual_encoder import build_tokenizers
from raydr.training.batches import BatchMaker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of a run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--batches", type=int, default=50)
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, [*arguments.overrides, "tracking.enabled=false"])
    split = config.data.train_split
    with open_session(config) as session:
        recipe = session.recipe
        dataset, searched, candidates = session.make(recipe.dataset(), recipe.corpus(), recipe.candidates(split))
        data, corpus = Dataset(dataset), Corpus(searched)
        mined = read_split(candidates, "negatives", split)
    examples = load_examples(data.queries(split), data.qrels(split), mined, corpus)
    maker = BatchMaker(examples, corpus, build_tokenizers(config.model), config.train, config.seed, 0, 1)
    shares = []
    for epoch in itertools.count():
        for batches in maker.epoch(epoch):
            passages = np.concatenate([batch.passage_hash_P.numpy() for batch in batches])
            shares.append(1 - len(np.unique(passages)) / len(passages))
            if len(shares) == arguments.batches:
                train = config.train
                print(
                    f"{len(shares)} batches of {train.batch_size} queries with {train.num_hard_negatives} hard "
                    f"negatives each, {len(corpus):,} passages: {np.mean(shares):.2%} of a batch's passages are "
                    f"repetitions (at most {np.max(shares):.2%})"
                )
                return


if __name__ == "__main__":
    main()
