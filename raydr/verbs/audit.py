"""``raydr audit``: how much of a data set is wrong, as one page and one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.judging import speaking
from raydr.graph.session import Session, open_session
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.judges.asked import CrossFitted, Retriever
from raydr.noise.judges.base import Judge
from raydr.noise.judges.npc import NPC
from raydr.runtime.console import say
from raydr.stages.audit import load_result
from raydr.stages.audit import show as show_audit
from raydr.stages.places import UNTRAINED
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TrainSplit, takes_config
from raydr.verbs.judge import TRUTH

#: Who judges the pairs of a run whose config has no judges, and the candidates of one that mines some.
PAIRS_JUDGE, NEGATIVES_JUDGE = "npc", "margin"


@takes_config
def audit(
    config: RunConfig,
    model: str = "",
    judges: Annotated[str, typer.Option(metavar="A,B")] = "",
    split: TrainSplit = "",
    quick: bool = False,
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Estimate which pairs are mismatched: one page with the worst of them, and all of them as a table.

    Args:
        model: model of the working folder; judge.model if it is there, else the untrained encoder.
        judges: judges, separated by commas (npc, consistency, pair_classifier, margin, sieve, classifier, guide,
            near_duplicate, language_model, language_model_negatives, calibrated, calibrated_negatives, people), the
            first of pairs decides; those of the config, or npc, and margin where the config mines negatives.
        quick: measure pairs by the checkpoint as it is, without training: a first answer, a little less sure.

    Raises:
        ConfigError: a judge is unknown, or judges nothing.
    """
    names = [name.strip() for name in judges.split(",") if name.strip()]
    names = list(dict.fromkeys(names)) or [one.name for one in config.judge.judges]
    names = names or [PAIRS_JUDGE, *[NEGATIVES_JUDGE] * (config.negatives is not None)]
    if TRUTH in names:
        raise ConfigError(f"{TRUTH} is no judge that could be audited: the truth is compared with where it is known")
    with open_session(config, again, dry_run) as session:
        recipe, split = session.recipe, split or config.data.train_split
        asked = speaking(config.judge, [config.judge.judge(name) for name in names], on_negatives=False)
        if quick:
            asked, model = [_without_training(judge) for judge in asked], UNTRAINED
        elif any(isinstance(judge.asks(config.judge), CrossFitted) for judge in asked):
            say("audit: models are trained that have not seen the pairs; --quick asks the checkpoint as it is")
        target = recipe.audit(asked, split, model or _default_model(session, asked))
        verdicts = [node for name, node in recipe.names.items() if name.startswith("verdicts/")]
        made = session.make(target, anew=[*verdicts, target])
        for one in made:
            show_audit(one)
            for part in one.parts():
                if part.endswith((".html", ".json", ".png", ".csv")):
                    session.tracker.log_artifact(one.local(part))
        return made


def _without_training(judge: Judge) -> Judge:
    """The same judge, asking the retriever where it asks models that are trained for it."""
    if not isinstance(judge, NPC) or judge.margins == "model":
        return judge
    return judge.model_copy(update={"margins": "model", "detector": AnchoredDetector()})


def next_after_audit(made: list[Artifact]) -> tuple[str, list[str], str]:
    """The verb that acts on an audit, settings for it, and what for."""
    pairs = load_result(made[0]).pairs
    if not pairs or pairs[0].reason:
        return "review", [], "to look at some"
    if pairs[0].num_flagged:
        return "train", ["train.loss=npc"], "to train through them"
    return "train", [], ""


def _default_model(session: Session, judges: Sequence[Judge]) -> str:
    settings = session.config.judge
    if settings.model == UNTRAINED or session.places.pointer(f"models/{settings.model}") is not None:
        return settings.model
    if any(isinstance(judge.asks(settings), Retriever) for judge in judges):
        say(f"audit: there is no model {settings.model!r} in {session.places.root}, the untrained encoder is asked")
    return UNTRAINED
