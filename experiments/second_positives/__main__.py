"""A config's data with second positives for its training queries, as a BEIR folder.

A run that reads the folder plants them with ``inject_noise: {kind: false_negatives}``.

    python -m experiments.second_positives configs/so-codenn.yaml work/data/so-renamed --sources renamed
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from experiments.arguments import command
from experiments.second_positives.folder import Settings, write_with_second_positives
from experiments.second_positives.judged import Source
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.nodes.data import prepared
from raydr.graph.session import open_session
from raydr.runtime.console import show_summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="its data is prepared; data, seed and evaluate.answer_* are used")
    parser.add_argument("target", type=Path)
    parser.add_argument("--sources", required=True, nargs="+", choices=get_args(Source))
    parser.add_argument("--answer-overlap", type=float, default=Settings.answer_overlap, metavar="SHARE")
    parser.add_argument("--recut-words", type=int, nargs=2, default=Settings.recut_words, metavar=("LEAST", "MOST"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, arguments.overrides)
    with open_session(config) as session:
        corpus, dataset = session.make(session.recipe.corpus(), prepared(session.recipe.run))
    settings = Settings(
        arguments.sources,
        config.data.train_split,
        config.seed,
        config.evaluate.answer_match,
        config.evaluate.answer_query_prefixes,
        arguments.answer_overlap,
        tuple(arguments.recut_words),
    )
    counts = write_with_second_positives(Dataset(dataset), Corpus(corpus), settings, arguments.target)
    facts = {name: f"{count:,}" for name, count in counts.items()}
    show_summary(f"second positives: {', '.join(arguments.sources)}", facts | {"at": str(arguments.target)})


if __name__ == "__main__":
    command(main)
