"""``raydr audit``: how noisy a data set is, by several judges, as one report."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.judging import speaking
from raydr.graph.places import UNTRAINED
from raydr.graph.session import Session, open_session
from raydr.runtime.console import say
from raydr.stages.audit import show as show_audit
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TrainSplit, takes_config
from raydr.verbs.judge import TRUTH

#: Judges of a run whose config has none: ``npc``, which trains short models of its own once (``cross_fit``), and those
#: that need no model but the one that is audited with.
JUDGES = ("npc", "consistency", "margin")


@takes_config
def audit(
    config: RunConfig,
    model: str = "",
    judges: Annotated[str, typer.Option(metavar="A,B")] = "",
    split: TrainSplit = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Estimate mismatched pairs and false negatives, and show the worst of them, on one page.

    Args:
        model: model of the working folder; judge.model if it is there, else the untrained encoder.
        judges: judges, separated by commas (npc, consistency, pair_classifier, margin, sieve, classifier, guide,
            near_duplicate, language_model, language_model_negatives, calibrated, calibrated_negatives, people); those
            of the config, or npc, consistency and margin.

    Raises:
        ConfigError: a judge is unknown, or judges nothing.
    """
    names = [name.strip() for name in judges.split(",") if name.strip()]
    names = list(dict.fromkeys(names)) or [one.name for one in config.judge.judges] or list(JUDGES)
    if TRUTH in names:
        raise ConfigError(f"{TRUTH} is no judge that could be audited: the truth is compared with where it is known")
    with open_session(config, again, dry_run) as session:
        recipe, split = session.recipe, split or config.data.train_split
        named = [config.judge.judge(name) for name in names]
        target = recipe.audit(
            speaking(config.judge, named, on_negatives=False), split, model or _default_model(session)
        )
        verdicts = [node for name, node in recipe.names.items() if name.startswith("verdicts/")]
        made = session.make(target, anew=[*verdicts, target])
        for one in made:
            show_audit(one)
            for part in one.parts():
                if part.endswith((".html", ".json", ".png")):
                    session.tracker.log_artifact(one.local(part))
        return made


def _default_model(session: Session) -> str:
    name = session.config.judge.model
    if name == UNTRAINED or session.places.pointer(f"models/{name}") is not None:
        return name
    say(f"audit: there is no model {name!r} in {session.places.root}, the untrained encoder is asked")
    return UNTRAINED
