"""Noise: candidates, verdicts, what verdicts leave, statistics, audits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from raydr.data.dataset import Dataset
from raydr.evaluation.config import EvaluateConfig
from raydr.graph.nodes import data
from raydr.graph.nodes.cross_fitting import FOLDS, MARGINS, MODEL
from raydr.models.encode_config import EncodeConfig
from raydr.negatives.config import NegativesConfig
from raydr.noise.judges.base import Judge, SampleJudge, SplitJudge
from raydr.noise.judges.language_model import LanguageModelJudge
from raydr.noise.judges.people import DecisionsReader
from raydr.stages.apply_verdicts import APPLY_VERSION, CLEAN_VERSION, FILTER_VERSION, apply_verdicts, filter_pairs
from raydr.stages.apply_verdicts import clean_only as keep_clean
from raydr.stages.arithmetic import Arithmetic
from raydr.stages.context import Declaring, encoders
from raydr.stages.declaration import Node, stage
from raydr.stages.given_verdicts import VERDICTS
from raydr.stages.judge import judge as give_verdicts
from raydr.stages.language_model import ANSWERS, ask_language_model, check_server
from raydr.stages.language_model import VERSION as ASKED_VERSION
from raydr.stages.mine import VERSION, mine
from raydr.stages.pool import Pool
from raydr.stages.scoring import CrossFittedScoring, Scoring, scoring_of
from raydr.store.artifact import Artifact
from raydr.store.identity import fingerprint_of


def mined(run: Declaring, miner: str, ranked: Node | None, split: str, number: int = 0) -> Node:
    """Candidate hard negatives.

    Args:
        run: the config.
        miner: who proposes them: ``source``, ``bm25``, or the name of a model or run.
        ranked: its run over the split; None for those that came with the data.
        split: the split.
        number: of the refresh round, from 1.
    """
    settings, scope = run.config.negatives or NegativesConfig(), run.config.scope(split)
    how: dict[str, Any] = {"split": split, "miner": miner, "round": number, "scope": scope}
    return Node(
        "negatives",
        f"{run.place}mine-{miner}-{split}",
        stage(partial(mine, settings=settings, **how), "dataset", "corpus", "run"),
        {**how, **settings.model_dump(include={"first_rank", "depth"})},
        {"dataset": data.dataset(run), "corpus": data.corpus(run)} | ({} if ranked is None else {"run": ranked}),
        VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
    )


def verdicts(
    run: Declaring,
    judge: Judge,
    split: str,
    negatives: Node | None,
    reads: Mapping[str, Node],
    earlier: Node | None = None,
) -> Node:
    """What a judge says of the candidates, or of the annotated pairs, of a split.

    Args:
        run: the config.
        judge: the rule.
        split: the split.
        negatives: what is judged; None for judges of pairs.
        reads: whose scores are read, by role: a model, one a fold with the folds, or cross-fitted margins; nothing for
            the scores that the candidates were mined with.
        earlier: the verdicts of the judge that this one comes after.
    """
    from raydr.stages.judge import VERSION

    config, encode = run.config, run.config.encode
    measured = MARGINS in reads
    asks_model = bool(reads) and not measured
    arithmetic = run.facts.encoding(encode) if asks_model else None
    on_pairs = judge.subject == "pairs"
    settled = run.facts.settled(judge, split) if isinstance(judge, DecisionsReader) else None
    decided = {} if settled is None else {"decisions": fingerprint_of([*settled.items()])}
    inputs = {"dataset": data.dataset(run), "corpus": data.corpus(run)}
    inputs |= ({} if negatives is None else {"negatives": negatives}) | dict(reads)
    inputs |= {} if earlier is None else {"earlier": earlier}
    return Node(
        "verdicts",
        f"{run.place}judge-{judge.name}-{split}",
        lambda work: give_verdicts(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            judge=judge,
            split=split,
            seed=config.seed,
            settings=encode,
            scoring=scoring(work.pool, work.inputs, encode, arithmetic, split) if arithmetic is not None else None,
            negatives=work.get("negatives"),
            margins=work.get(MARGINS),
            earlier=work.get("earlier"),
            settled=settled or {},
        ),
        {
            "split": split,
            "judge": judge.content(),
            **decided,
            **(arithmetic.content if arithmetic is not None else {}),
            **({"seed": config.seed} if isinstance(judge, SampleJudge) and not measured else {}),
            **({"measures": list(judge.measures)} if isinstance(judge, SplitJudge) else {}),
        },
        inputs,
        VERSION,
        num_rows=lambda inputs: (
            inputs["dataset"].rows(f"qrels/{split}") if on_pairs else inputs["negatives"].rows(f"negatives/{split}")
        ),
        asks_model=asks_model,
        demand=encoders(run.config),
    )


def asked_verdicts(run: Declaring, judge: Judge, split: str, earlier: Node) -> Node:
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
        ASKED_VERSION,
        num_rows=lambda inputs: inputs["earlier"].rows(f"{VERDICTS}/{split}"),
        check=partial(check_server, judge),
    )


def scoring(
    pool: Pool, inputs: Mapping[str, Artifact], encode: EncodeConfig, arithmetic: Arithmetic, split: str
) -> Scoring:
    """By the model that a judge asks, or by that of each query's fold.

    Args:
        pool: where pairs are scored.
        inputs: what it reads, by role, and the data set.
        encode: settings of the workers.
        arithmetic: of the scores.
        split: that is judged.
    """
    folds = inputs.get(FOLDS)
    if folds is None:
        return scoring_of(pool, inputs[MODEL], encode, arithmetic)
    first, *others = (one for role, one in inputs.items() if role.startswith(f"{MODEL}/"))
    by_first = scoring_of(pool, first, encode, arithmetic)
    return CrossFittedScoring(
        **vars(by_first), others=tuple(others), folds=folds, data=Dataset(inputs["dataset"]), split=split
    )


def judged(run: Declaring, negatives: Node, given: Mapping[str, Node], split: str) -> Node:
    """The candidates with the actions and weights of the verdicts, by the judge's name."""
    return Node(
        "negatives",
        f"{run.place}judged-{'+'.join(given)}-{split}",
        stage(partial(apply_verdicts, split=split), "negatives", "verdicts/"),
        {"split": split},
        {"negatives": negatives, "dataset": negatives.inputs["dataset"], **_by_judge(given)},
        APPLY_VERSION,
        num_rows=lambda inputs: inputs["negatives"].rows(f"negatives/{split}"),
    )


def filtered(run: Declaring, given: Mapping[str, Node], split: str) -> Node:
    """The data set without the pairs of a split that a judge drops."""
    return Node(
        "dataset",
        f"{run.place}pairs-{'+'.join(given)}-{split}",
        stage(partial(filter_pairs, split=split), "dataset", "verdicts/"),
        {"split": split},
        {"dataset": data.dataset(run), "corpus": data.corpus(run), **_by_judge(given)},
        FILTER_VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"qrels/{split}"),
    )


def clean_only(run: Declaring, split: str) -> Node:
    """The data set without the pairs of a split that were made noisy on purpose."""
    return Node(
        "dataset",
        f"{run.place}pairs-truth-{split}",
        stage(partial(keep_clean, split=split), "dataset"),
        {"split": split, "clean_only": True},
        {"dataset": data.dataset(run), "corpus": data.corpus(run)},
        CLEAN_VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"qrels/{split}"),
    )


def _by_judge(given: Mapping[str, Node]) -> dict[str, Node]:
    return {f"verdicts/{name}": node for name, node in given.items()}


def statistics(run: Declaring, negatives: Node) -> Node:
    """Counts of the candidates that training draws from."""
    from raydr.stages.negatives_statistics import KIND, VERSION, count_negatives

    split, settings = run.config.data.train_split, run.config.evaluate
    return Node(
        KIND,
        f"{run.place}statistics",
        stage(partial(count_negatives, split=split, settings=settings), "dataset", "corpus", "negatives"),
        {"split": split, **_of_answers(settings)},
        {"dataset": data.dataset(run), "corpus": data.corpus(run), "negatives": negatives},
        VERSION,
        num_rows=lambda inputs: inputs["negatives"].rows(f"negatives/{split}"),
    )


def _of_answers(settings: EvaluateConfig) -> dict[str, Any]:
    """What it depends on whether a passage answers a query."""
    return dict(settings.model_dump(mode="json", include={"answer_match", "answer_query_prefixes"}))


def audit(run: Declaring, name: str, given: Mapping[str, Node], negatives: Node | None, split: str) -> Node:
    """A report of what judges say.

    Args:
        run: the config.
        name: of the model that judges ask.
        given: the verdicts, by judge.
        negatives: the candidates that were judged, if any were.
        split: the split.
    """
    # pandas, which other nodes do not need, takes its time.
    from raydr.stages.audit import VERSION
    from raydr.stages.audit import audit as report
    from raydr.stages.audit_verdicts import NUM_SHOWN

    answers, rows_are_pairs = run.config.evaluate, run.config.data.reader.passages_repeat
    named: dict[str, Any] = {"split": split, "train_split": run.config.data.train_split, "seed": run.config.seed}
    inputs = {"dataset": data.dataset(run), "corpus": data.corpus(run), **_by_judge(given)}
    make = partial(report, model_name=name, answers=answers, rows_are_pairs=rows_are_pairs, **named)
    return Node(
        "audit",
        f"{run.place}audit-{name}-{split}",
        stage(make, "dataset", "corpus", "verdicts/", "negatives"),
        {**named, "model": name, "judges": list(given), "shown": NUM_SHOWN, **_of_answers(answers)},
        inputs if negatives is None else inputs | {"negatives": negatives},
        VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"qrels/{split}"),
        moves=True,
    )
