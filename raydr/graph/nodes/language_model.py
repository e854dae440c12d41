"""Verdicts of a language model."""

from __future__ import annotations

from functools import partial

from raydr.graph.declaring import Declaring
from raydr.graph.node import Node, stage
from raydr.graph.nodes import data
from raydr.noise.judges.base import Judge
from raydr.noise.judges.language_model import LanguageModelJudge
from raydr.stages.given_verdicts import VERDICTS
from raydr.stages.language_model import VERSION, ask_language_model, check_server

#: Folder of the working folder where answers are kept, of whichever artefact.
ANSWERS = "answers"


def verdicts(run: Declaring, judge: Judge, split: str, earlier: Node) -> Node:
    """What a language model says of what another judge is unsure of.

    Args:
        run: the config.
        judge: whom to ask what.
        split: the split.
        earlier: the verdicts of that judge.

    Raises:
        ConfigError: no model is named.
        TypeError: the judge does not say what is to be asked.
    """
    if not isinstance(judge, LanguageModelJudge):
        raise TypeError(f"judge {judge.name} asks a server: derive it from LanguageModelJudge")
    judge.require_model()
    ask = partial(ask_language_model, judge=judge, split=split, answers=run.facts.places.root / ANSWERS)
    return Node(
        "verdicts",
        f"{run.place}judge-{judge.name}-{split}",
        stage(ask, "dataset", "corpus", "earlier"),
        {"split": split, "judge": judge.content()},
        {"dataset": data.dataset(run), "corpus": data.corpus(run), "earlier": earlier},
        VERSION,
        num_rows=lambda inputs: inputs["earlier"].rows(f"{VERDICTS}/{split}"),
        check=partial(check_server, judge),
    )
