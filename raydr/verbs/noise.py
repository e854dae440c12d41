"""Noise verbs: ``judge``, ``audit``, ``why`` and ``review``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import typer

from raydr.artefacts import cross_fitting
from raydr.artefacts.audit import load_result
from raydr.artefacts.audit import show as print_audit
from raydr.artefacts.declaration import Node
from raydr.artefacts.judged import known_clean
from raydr.artefacts.places import UNTRAINED, Places
from raydr.config.run import RunConfig
from raydr.config.sections import NEGATIVES_JUDGE, PAIRS_JUDGE
from raydr.console import duration, output, say, show_summary, warn
from raydr.errors import ConfigError
from raydr.noise.audit_result import THROUGH_NOISE, AuditResult
from raydr.noise.decisions import Decisions
from raydr.noise.judges.asked import CrossFitted, Retriever
from raydr.noise.judges.base import Judge
from raydr.noise.judges.people import People
from raydr.ops.review.review import Review
from raydr.ops.review.server import listen, serve
from raydr.ops.review.verdicts import find_verdicts, queue
from raydr.pipeline.judging import active_judges
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.running import time_of
from raydr.pipeline.session import Session, open_session
from raydr.pipeline.why import QueryRecord, dataset_of, explain_query, print_query
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TrainSplit, set_options, settings_to_draw_from, takes_config

#: Instead of a judge's name: drop pairs that were made noisy on purpose.
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
    """Judge negatives and pairs, and write copies without the wrong ones.

    Args:
        judge: run this judge (sieve, classifier, margin, guide, near_duplicate, consistency, npc,
            pair_classifier, language_model, language_model_negatives, calibrated, calibrated_negatives, people; truth
            keeps only pairs known to be clean) instead of those in the config; repeatable.
        miner: miner of the judged candidates, instead of negatives.miner.

    Returns:
        The judged ``negatives`` and the ``dataset`` without dropped pairs, as far as judged.

    Raises:
        ConfigError: no judge is named, or a judge cannot judge the split.
    """
    split = split or config.data.train_split
    names = judge or [rule.name for rule in config.judge.judges]
    if not names:
        raise ConfigError("no judge is named: set judge.judges, or pass --judge NAME")
    if TRUTH in names and len(names) > 1:
        raise ConfigError(f"judge {TRUTH} decides all pairs: use it without other judges")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        if TRUTH in names:
            recipe.dataset()
            return session.make(recipe.named("dataset-clean", known_clean(recipe.context, split)))
        judges = active_judges(
            config.judge, [config.judge.judge(name) for name in names], bool(config.negatives or miner)
        )
        result = recipe.judged(judges, split, miner)
        judged = [result.negatives] if any(rule.subject == "negatives" for rule in judges) else []
        targets = [node for node in (*judged, result.pairs) if node is not None]
        verdicts = [node for name, node in recipe.names.items() if name.startswith("verdicts/")]
        return session.make(*targets, anew=[*verdicts, *targets])


def next_after_judge(made: list[Artifact], config: RunConfig) -> tuple[str, list[str], str] | None:
    """Suggest training on the kept pairs, under another name if the config does not name the judges.

    Returns:
        None if no label changes, no pair is left, or the split is not trained on. None also for pairs that are known to
        be clean, and for some of the config's judges mixed with others, which no setting names alone.
    """
    roles = [role.partition("/") for artifact in made for role in artifact.manifest.identity.inputs]
    rules, names = config.judge, {name for kind, _, name in roles if kind == "verdicts"}
    own = {rule.name for rule in active_judges(rules, rules.judges, on_negatives=True)}
    infos = [artifact.info for artifact in made]
    pairs = [info for info in infos if "judgments_after" in info]
    changed = any(info.get(action) for info in infos for action in ("drop", "down_weight", "relabel"))
    changed |= any(info["judgments_after"] < info["judgments_before"] for info in pairs)
    emptied = any(not info["judgments_after"] for info in pairs)
    splits = {artifact.manifest.identity.config["split"] for artifact in made}
    if not names or not changed or emptied or splits != {config.data.train_split}:
        return None
    options: list[str] = []
    if names.isdisjoint(own):
        judges = [rules.judge(name) for name in sorted(names)]
        implied = {rule.name for judge in judges for rule in judge.companions()}
        # Each judge comes after the judges that it follows.
        chains = active_judges(rules, [judge for judge in judges if judge.name not in implied], on_negatives=False)
        named = [judge.name for judge in chains]
        options = ["--name", f"kept-by-{'-'.join(named)}", *set_options([f"judge.judges=[{','.join(named)}]"])]
    elif names != own:
        return None
    for artifact in made:
        if artifact.manifest.identity.kind == "negatives":
            options += set_options(settings_to_draw_from(artifact.info["miner"], config))
    purpose = f"to train on the {pairs[0]['judgments_after']:,} kept pairs" if pairs else "to train on what is kept"
    return "train", options, purpose


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
    """Estimate which pairs are mismatched: a page with the worst pairs, and a table of all.

    Args:
        model: model of the working folder; default: judge.model if it exists, else the untrained encoder.
        judges: judges, separated by commas (npc, consistency, pair_classifier, margin, sieve, classifier, guide,
            near_duplicate, language_model, language_model_negatives, calibrated, calibrated_negatives, people), the
            first of pairs decides; those of the config, or npc, and margin where the config mines negatives.
        quick: measure pairs with the checkpoint alone, without training: as good where it is a retriever of such texts.

    Raises:
        ConfigError: a judge is unknown, or has nothing to judge.
    """
    names = [name.strip() for name in judges.split(",") if name.strip()]
    names = list(dict.fromkeys(names)) or [judge.name for judge in config.judge.judges]
    names = names or [PAIRS_JUDGE, *[NEGATIVES_JUDGE] * (config.negatives is not None)]
    if TRUTH in names:
        raise ConfigError(f"{TRUTH} is no judge to audit: every judge is compared with the truth where it is known")
    with open_session(config, again, dry_run) as session:
        recipe, split = session.recipe, split or config.data.train_split
        active = active_judges(config.judge, [config.judge.judge(name) for name in names], on_negatives=False)
        if quick:
            if model not in ("", UNTRAINED):
                raise ConfigError(f"--quick asks the untrained checkpoint, got --model {model}: leave one out")
            targets = [_quick_audit(recipe, active, split)]
        else:
            targets = [recipe.audit(active, split, model or _default_model(session, active))]
            slow = [judge for judge in active if isinstance(judge.asks(config.judge), CrossFitted)]
            margins = cross_fitting.margins(recipe.context, split)
            trains = config.cross_fit.resolved(config.model).num_epochs and session.inventory.state(margins) != "done"
            if slow and trains:
                first = _quick_audit(recipe, slow, split)
                if dry_run:
                    targets.insert(0, first)
                else:
                    _show_quick_answer(session, first)
        verdicts = [node for name, node in recipe.names.items() if name.startswith("verdicts/")]
        made = session.make(*targets, anew=[*verdicts, *targets])
        for artifact in made:
            print_audit(artifact)
            result = load_result(artifact)
            for doubt in filter(None, (result.caveat, _doubt(config, result, quick))):
                warn(doubt)
            for part in artifact.parts():
                if part.endswith((".html", ".json", ".png", ".csv")):
                    session.tracker.log_artifact(artifact.local(part))
        return made


def _doubt(config: RunConfig, result: AuditResult, quick: bool) -> str:
    """Return why the checkpoint's measures may be too weak for the audit; empty if they are not, or not used."""
    judges = [pairs for pairs in result.pairs if pairs.settings.get("margins") == "cross_fitted"]
    folds = (_untrained(config) if quick else config).cross_fit.resolved(config.model)
    doubt = folds.doubt(judges[0].share_estimated if judges else None)
    return f"{doubt} Leave out --quick." if doubt and quick else doubt


def _quick_audit(recipe: Recipe, judges: Sequence[Judge], split: str) -> Node:
    """Declare the audit by margins of the untrained checkpoint alone."""
    context = recipe.context.of(_untrained(recipe.config))
    return replace(recipe, context=context).audit(judges, split, UNTRAINED, "quick")


def _untrained(config: RunConfig) -> RunConfig:
    """Return the config with margins of the checkpoint as it is."""
    return config.model_copy(update={"cross_fit": config.cross_fit.model_copy(update={"num_epochs": 0})})


def _show_quick_answer(session: Session, target: Node) -> None:
    """Print what the checkpoint shows without training, and what the whole audit takes."""
    [made], config = session.make(target), session.config
    folds = config.cross_fit.resolved(config.model)
    say(f"a first answer, by the checkpoint without training: {load_result(made).headline}")
    measured = [node for node in target.ancestors().values() if node.kind == cross_fitting.MARGINS]
    times = filter(None, (time_of(session.places.root, node.label, node.key) for node in measured))
    # A step of training is about three times the computation of an encoding.
    seconds = (3 * folds.total_epochs + 1) * sum(time.seconds for time in times)
    forecast = f", roughly {duration(seconds)} here" if seconds else ""
    say(
        f"the whole audit trains {folds.num_folds} models, each without the pairs that it measures: "
        f"{folds.total_epochs} epochs of the pairs in all{forecast}. It gains where the checkpoint is no retriever of "
        "such texts. raydr audit --quick stops before it"
    )


def next_after_audit(made: list[Artifact], config: RunConfig) -> tuple[str, list[str], str]:
    """Return the verb that acts on an audit, its options and its purpose."""
    result = load_result(made[0])
    pairs = result.pairs
    if result.split != result.train_split:
        return "review", ["--split", result.split], "to look at some"
    if not pairs or pairs[0].reason:
        return "review", [], "to look at some"
    if not pairs[0].num_flagged:
        return "train", [], ""
    trained = [config.train, *(config.variant(name).train for name in config.variants)]
    settings = [] if any(train.reads_margins for train in trained) else [THROUGH_NOISE]
    return "evaluate", set_options(settings), "to train through them, and compare"


def _default_model(session: Session, judges: Sequence[Judge]) -> str:
    settings = session.config.judge
    if settings.model == UNTRAINED or session.places.pointer(f"models/{settings.model}") is not None:
        return settings.model
    if any(isinstance(judge.asks(settings), Retriever) for judge in judges):
        say(f"audit: {session.places.root} has no model {settings.model!r}; using the untrained encoder")
    return UNTRAINED


@takes_config
def why(config: RunConfig, query: Annotated[str, typer.Argument(metavar="QUERY")]) -> QueryRecord:
    """Show each negative of a query with its provenance and verdicts. Reads existing artefacts, without Ray.

    Args:
        query: id or text of the query.
    """
    return explain_query(config, query)


def show_why(record: QueryRecord) -> None:
    """Print the data on a query."""
    print_query(record, output())


@takes_config
def review(
    config: RunConfig,
    reviewer: str = "",
    order: Literal["sample", "worst", "informative"] = "sample",
    judges: Annotated[str, typer.Option(metavar="A,B")] = "",
    split: TrainSplit = "",
    limit: Annotated[int, typer.Option(min=1)] = 500,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8765,
) -> Decisions:
    """Show doubtful pairs and candidates on a local page, and record the decisions of people.

    Reads existing artefacts, without Ray. Each decision is on disk before the next page. Ctrl-C ends it.

    Args:
        reviewer: your name; the page asks for it by default.
        order: order of the labels: random among the most suspicious, which a warranty counts (sample), most surely
            wrong first (worst), or most doubtful first (informative).
        judges: judges of the verdicts, one of pairs and one of candidates.
        limit: pairs and candidates in the list, at most.
        port: local port; 0 for any free port.

    Returns:
        All decisions in the file.

    Raises:
        ConfigError: the file of decisions is not local, or the port is taken.
        ArtifactError: the split has no verdicts.
    """
    places, split = Places.of(config.workdir), split or config.data.train_split
    people = config.judge.judge("people")
    assert isinstance(people, People)
    file = people.decisions(places.root.url)
    if "://" in file:
        raise ConfigError(f"decisions need a local file, got {file}: set judge.judges=[{{name: people, file: FILE}}]")
    named = [name.strip() for name in judges.split(",") if name.strip()]
    verdicts = find_verdicts(places, dataset_of(config, places), split, config.judge, named)
    state = Review(Path(file), split, verdicts, partial(queue, places, verdicts, split, order, limit))
    before = state.decisions()
    if before.is_torn:
        warn(f"the last line of {file} is incomplete: it is ignored, and overwritten by the next decision")
    with listen(port) as bound:
        names = ", ".join(judged.name for judged in verdicts)
        say(f"{len(state.queue):,} pairs and candidates of {names}, order: {order}")
        query = f"?{urlencode({'reviewer': reviewer})}" if reviewer else ""
        say(f"open http://127.0.0.1:{bound.getsockname()[1]}/{query} in a browser on this machine; Ctrl-C ends")
        serve(state, bound)
    after = state.decisions()
    written = {"lines written": len(after.lines) - len(before.lines), "decisions": len(after.standing())}
    show_summary("review", {**written, "at": file})
    for finding in state.findings(after):
        say(f"  {finding}")
    if people not in config.judge.judges:
        say("  to train on the decisions, list people in judge.judges")
    return after
