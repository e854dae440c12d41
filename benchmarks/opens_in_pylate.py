"""Whether PyLate gives a saved late-interaction model's scores: the largest difference over pairs of some texts.

python -m venv ../pylate && ../pylate/bin/pip install pylate
python -m benchmarks.opens_in_pylate work/late/models/trained --pylate ../pylate/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np

QUERIES = ["What is the capital of France?", "who wrote Hamlet, and when?", "a"]
PASSAGES = [
    "Paris is the capital and most populous city of France. " * 5,
    "Hamlet is a tragedy written by William Shakespeare.",
    "An odd! text... with punctuation (and) so-on.",
]


def main() -> None:
    import torch

    from raydr.models.pair_scoring import DualEncoderScorer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model with score sum_of_max and one tower")
    parser.add_argument("--pylate", required=True, help="Python of an environment with PyLate")
    arguments = parser.parse_args()
    scorer = DualEncoderScorer(arguments.model, "float32", "cpu", 4096)
    queries, passages = scorer.encode("query", None, QUERIES), scorer.encode("passage", [""] * 3, PASSAGES)
    ours = scorer.config.score.all_pairs(torch.from_numpy(queries), torch.from_numpy(passages)).numpy()
    asked = subprocess.run(
        [arguments.pylate, __file__, arguments.model], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    theirs = np.array(json.loads(asked[-1]))
    print(f"scores {ours.min():.3f} to {ours.max():.3f}, the largest difference {np.abs(ours - theirs).max():.1e}")


def score_by_pylate(folder: str) -> list[list[float]]:
    """In PyLate's environment: the scores of all pairs. It adds a prefix only where its prompt is named."""
    from pylate import models

    model: Any = models.ColBERT(folder, device="cpu")
    queries = model.encode(QUERIES, is_query=True, prompt_name="query")
    passages = model.encode(PASSAGES, is_query=False, prompt_name="document")
    return [[float((one @ other.T).max(axis=1).sum()) for other in passages] for one in queries]


if __name__ == "__main__":
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        print(json.dumps(score_by_pylate(sys.argv[1])))
    else:
        main()
