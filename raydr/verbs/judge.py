"""``raydr judge``: verdicts on candidate negatives and on annotated pairs, and the judged data."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.judging import speaking
from raydr.graph.session import open_session
from raydr.stages.apply_verdicts import known_clean
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TrainSplit, takes_config

#: In place of a judge's name: drop the pairs that were made noisy on purpose.
TRUTH = "truth"


@takes_config
def judge(
    config: RunConfig,
    judge: list[str] | None = None,
    split: TrainSplit = "",
    miner: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Judge negatives and pairs, and write copies without what was found to be wrong.

    Args:
        judge: run this judge (sieve, classifier, margin, guide, near_duplicate, consistency, npc,
            pair_classifier, language_model, language_model_negatives, calibrated, calibrated_negatives, people; truth
            keeps only pairs known to be clean) instead of those in the config; repeatable.
        miner: whose candidates are judged, instead of negatives.miner.

    Returns:
        The judged ``negatives``, and the ``dataset`` without the pairs that were dropped, whichever were judged.

    Raises:
        ConfigError: no judge was named, or one cannot judge the split.
    """
    split = split or config.data.train_split
    names = judge or [one.name for one in config.judge.judges]
    if not names:
        raise ConfigError("no judge was named: list some in the section judge.judges, or give --judge NAME")
    if TRUTH in names and len(names) > 1:
        raise ConfigError(f"judge {TRUTH} says all there is to say about pairs: use it alone")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        if TRUTH in names:
            recipe.dataset()
            return session.make(recipe.named("dataset-clean", known_clean(recipe.run, split)))
        judges = speaking(config.judge, [config.judge.judge(name) for name in names], bool(config.negatives or miner))
        found = recipe.judged(judges, split, miner)
        judged = [found.negatives] if any(one.subject == "negatives" for one in judges) else []
        targets = [node for node in (*judged, found.pairs) if node is not None]
        verdicts = [node for name, node in recipe.names.items() if name.startswith("verdicts/")]
        return session.make(*targets, anew=[*verdicts, *targets])
