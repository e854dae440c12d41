"""An audit of tiny data with injected noise: figures against loops over the verdicts, the page, reuse, refusals."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_stage import interrupt, make

import raydr
from artefacts.judge_inputs import DEPTH, FLOAT32, NUM_QUERIES, JudgeInputs, make_cross_encoder, make_inputs
from raydr.artefacts.audit import FLAGGED_COLUMNS, load_result, report_verdicts, show
from raydr.artefacts.audit_verdicts import worst_first
from raydr.artefacts.verdicts import judge_labels
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.tables import read_parquet, to_table, write_parquet
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError
from raydr.evaluation.config import EvaluateConfig
from raydr.models.encode_config import EncodeConfig
from raydr.noise.audit_result import AuditResult
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import MixtureFit
from raydr.noise.judges.base import Judge
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.guide import Guide
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.npc import NPC
from raydr.noise.judges.pair_classifier import PairClassifier
from raydr.pages.audit import parse_fit
from raydr.store.artifact import Artifact
from raydr.store.building import begin
from raydr.store.folder import write_part
from raydr.store.identity import Identity

#: The tiny encoder has not learned anything: a wide margin flags some, and not all.
JUDGES: list[Judge] = [
    NPC(detector=AnchoredDetector(), margins="model", num_random=20),
    Consistency(num_random=40),
    Margin(mode="absolute", margin=0.02),
    Guide(),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("audit"), tiny_checkpoint)


@pytest.fixture(scope="module")
def verdicts(inputs: JudgeInputs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("verdicts")
    return {
        rule.name: make(
            folder / rule.name,
            "verdicts",
            judge_labels,
            inputs.dataset,
            inputs.corpus,
            judge=rule,
            split="train",
            seed=0,
            settings=EncodeConfig(),
            model=inputs.model,
            arithmetic=FLOAT32,
            negatives=inputs.negatives if rule.subject == "negatives" else None,
        )
        for rule in JUDGES
    }


def audited(
    folder: Path,
    inputs: JudgeInputs,
    verdicts: dict[str, Artifact],
    negatives: Artifact | None = None,
    pool: Pool | None = None,
) -> Artifact:
    return make(
        folder,
        "audit",
        report_verdicts,
        inputs.dataset,
        inputs.corpus,
        verdicts,
        negatives,
        pool=pool,
        model_name="untrained",
        split="train",
        train_split="train",
        seed=0,
        answers=EvaluateConfig(),
    )


@pytest.fixture(scope="module")
def made(inputs: JudgeInputs, verdicts: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return audited(tmp_path_factory.mktemp("audits") / "audit", inputs, verdicts, inputs.negatives)


def test_who_has_looked_again_says_which_queries_are_suspected(
    inputs: JudgeInputs, verdicts: dict[str, Artifact], tiny_checkpoint: str, tmp_path: Path
) -> None:
    reader = make_cross_encoder(tmp_path / "reader", tiny_checkpoint)
    again = make(
        tmp_path / "again",
        "verdicts",
        judge_labels,
        inputs.dataset,
        inputs.corpus,
        # It keeps all that it reads.
        judge=PairClassifier(after="consistency", unsure=(0.5, 0.8), negative_below=0.0),
        split="train",
        seed=0,
        settings=EncodeConfig(),
        model=reader,
        arithmetic=FLOAT32,
        negatives=None,
        earlier=verdicts["consistency"],
    )
    chosen = {name: verdicts[name] for name in ("consistency", "npc", "margin")}
    # npc comes after nobody.
    made = audited(tmp_path / "audit", inputs, chosen | {"pair_classifier": again}, inputs.negatives)
    first, second = (
        {
            row["query_id"]: row["action"]
            for name in artifact.parts("verdicts")
            for row in read_parquet(artifact.local(name)).to_pylist()
        }
        for artifact in (verdicts["consistency"], again)
    )
    flagged = {query_id for query_id, action in (first | second).items() if action == "drop"}
    assert 0 < len(flagged) < sum(action == "drop" for action in first.values())
    result = load_result(made)
    assert result.suspected_by == "consistency, then pair_classifier"
    assert result.negatives[0].num_queries == NUM_QUERIES - len(flagged)


def test_shares_are_those_of_the_verdicts(verdicts: dict[str, Artifact], made: Artifact) -> None:
    result = load_result(made)
    assert [findings.judge for findings in result.pairs] == ["npc", "consistency"]
    assert [findings.judge for findings in result.negatives] == ["margin", "guide"]
    npc, margin = verdicts["npc"], verdicts["margin"]
    pairs = [row for name in npc.parts("verdicts") for row in read_parquet(npc.local(name)).to_pylist()]
    suspected = {row["query_id"] for row in pairs if row["action"] == "drop"}
    assert suspected
    assert result.pairs[0].num_flagged == len(suspected)
    assert result.pairs[0].num_judged == NUM_QUERIES
    assert result.pairs[0].detection["recall"] > 0.5
    negatives = [row for name in margin.parts("verdicts") for row in read_parquet(margin.local(name)).to_pylist()]
    flagged = [row for row in negatives if row["action"] == "drop"]
    trusted = [row for row in flagged if row["query_id"] not in suspected]
    findings = result.negatives[0]
    assert (findings.num_flagged, findings.num_candidates) == (len(trusted), (NUM_QUERIES - len(suspected)) * DEPTH)
    assert findings.num_queries == NUM_QUERIES - len(suspected)
    by_query = [row["query_id"] for row in trusted]
    assert findings.num_queries_flagged == len(set(by_query))
    # Each planted s.. sits at rank 2.
    assert findings.num_flagged_in_top_10 == len(trusted)
    assert made.info["false_negative_share.margin"] == findings.share_flagged


def test_what_the_detector_rests_on_is_kept(verdicts: dict[str, Artifact], made: Artifact) -> None:
    npc = verdicts["npc"]
    kept = [row for name in npc.parts("detection") for row in read_parquet(npc.local(name)).to_pylist()]
    assert len(kept) == NUM_QUERIES
    detector = npc.info["detector"]
    fit = parse_fit(detector["fit"])
    assert isinstance(fit, MixtureFit)
    assert fit.bimodal
    margin_N = np.array([row["margin"] for row in kept])
    posterior = np.array([row["log_posterior"] for row in kept])
    assert np.allclose(fit.log_posterior(margin_N), posterior)
    probability = np.array([row["probability"] for row in kept])
    assert load_result(made).pairs[0].mean_probability == pytest.approx(float(probability.mean()))
    assert npc.info["detection"]["calibration_error"] is not None
    assert sum(bin_["count"] for bin_ in npc.info["detection"]["bins"]) == NUM_QUERIES


def test_the_page_begins_with_the_answer_and_shows_the_worst_beside_their_annotation(made: Artifact) -> None:
    page = html.unescape(made.folder.open("report.html").read().decode())
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    result = load_result(made)
    headline = f"{result.pairs[0].num_flagged} of {NUM_QUERIES} pairs ("
    # Before the first table and heading.
    assert page.index(headline) < page.index("<h2>")
    assert "raydr evaluate CONFIG --set variants.npc.loss=npc" in page[: page.index("<h2>")]
    for text in (
        "Most suspicious pairs, by npc",
        "the true passage, replaced on purpose",
        "injected noise",
        "mined by bm25, round 0, rank",
        "candidate, suspicious",
    ):
        assert text in page
    assert made.parts("plots") == ["plots/margins_npc.png"]
    assert page.count("data:image/png") == 1


def test_all_flagged_pairs_are_a_table_the_surest_first(verdicts: dict[str, Artifact], made: Artifact) -> None:
    with open(made.local("flagged.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == FLAGGED_COLUMNS
    npc = verdicts["npc"]
    shares = {
        (row["query_id"], row["passage_id"]): row["action"]
        for name in npc.parts("verdicts")
        for row in read_parquet(npc.local(name)).to_pylist()
    }
    dropped = {pair for pair, action in shares.items() if action == "drop"}
    assert {(row["query_id"], row["passage_id"]) for row in rows} == dropped
    assert len(rows) == len(dropped) == made.manifest.parts["flagged.csv"].rows
    sure = [float(row["p"]) for row in rows]
    assert sure == sorted(sure, reverse=True)
    assert all(row["query"] and row["passage"] for row in rows)
    assert all(
        re.match(r"npc: random passages score [\d.]+ (higher|lower); .*(also flagged|kept) by", row["why"])
        for row in rows
    )


def test_a_pair_is_found_again_in_the_file_that_it_came_from(tmp_path: Path) -> None:
    """The line is the pair's, where a passage is that of several pairs, or a negative of an earlier pair."""
    data = tmp_path / "pairs.csv"
    texts = [
        ("a query", "its passage", "the same"),
        ("another", "quoted\nover lines", "its passage"),
        ("third", "the same", "another"),
        ("fourth", "the same", "last"),
        ("fifth", "last", "its passage"),
    ]
    with open(data, "w", newline="") as file:
        csv.writer(file).writerows([("query", "positive", "negative"), *texts])
    config = RunConfig.parse(
        {
            "name": "t",
            "workdir": str(tmp_path / "w"),
            "tracking": {"enabled": False},
            "data": {
                "dev_split": "",
                "reader": {
                    "name": "pairs",
                    "path": str(tmp_path),
                    "files": {"train": data.name},
                    "columns": {"negatives": ["negative"]},
                },
            },
        }
    )
    corpus, dataset = raydr.prepare(config)
    qrels = Dataset(dataset).qrels("train").to_pylist()
    rows = [{**row, "score": 1.0, "action": "drop", "weight": 0.0, "judge": "npc"} for row in qrels]
    with begin(str(tmp_path / "npc"), Identity(kind="verdicts", config={"judge": {"name": "npc"}})) as making:
        table, part = to_table("verdicts", rows), "verdicts/train/part-00000-00000.parquet"
        making.record(part, write_part(making.folder, part, len(table), lambda path: write_parquet(table, path)))
        facts = {"subject": "pairs", "settings": {"name": "npc"}}
        npc = making.finish(facts)
    made = make(
        tmp_path / "audit", "audit", report_verdicts, dataset, corpus, {"npc": npc}, None, model_name="m",
        split="train", train_split="train", seed=0, answers=EvaluateConfig(),
    )  # fmt: skip
    with open(made.local("flagged.csv"), encoding="utf-8", newline="") as file:
        places = {row["query"]: (row["source"], row["line"], row["passage"]) for row in csv.DictReader(file)}
    assert places["a query"] == ("pairs.csv", "2", "its passage")
    assert places["another"] == ("pairs.csv", "3", "quoted\nover lines")
    assert [places[query][1] for query in ("third", "fourth", "fifth")] == ["5", "6", "7"]


def test_the_figures_can_be_read_back_and_shown(made: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads(made.folder.open("summary.json").read())
    assert AuditResult.model_validate(raw).model_dump(mode="json") == raw
    show(made)
    output = capsys.readouterr().err
    for title in ("mismatched pairs", "false negatives, without queries that npc flags", "against the truth"):
        assert title in output
    assert "are probably wrong, by npc. Its probabilities expect" in output
    assert "flagged.csv" in output


def test_an_interrupted_audit_goes_on_to_the_same_parts(
    inputs: JudgeInputs, verdicts: dict[str, Artifact], made: Artifact
) -> None:
    interrupt(made, "flagged.csv")
    again = audited(Path(made.folder.root), inputs, verdicts, inputs.negatives)
    assert again.manifest.parts == made.manifest.parts
    assert again.info == made.info


def test_the_worst_are_the_highest_scores_with_who_agrees() -> None:
    def verdicts_of(rows: list[tuple[str, str, float, bool]]) -> pd.DataFrame:
        return pd.DataFrame(rows, columns=["query_id", "passage_id", "score", "flagged"])

    margin = verdicts_of(
        [("q1", "a", 3.0, True), ("q1", "b", 9.0, True), ("q2", "a", 5.0, True), ("q3", "c", 9.9, False)]
    )
    sieve = verdicts_of([("q1", "b", 0.1, True), ("q2", "a", -1.0, False)])
    worst = worst_first(margin[margin["flagged"]], {"sieve": sieve})
    assert worst[["query_id", "passage_id"]].to_numpy().tolist() == [["q1", "b"], ["q2", "a"], ["q1", "a"]]
    assert worst["flagged_by"].tolist() == [["sieve"], [], []]
    assert worst["kept_by"].tolist() == [[], ["sieve"], []]


def test_pairs_alone_need_no_candidates(inputs: JudgeInputs, verdicts: dict[str, Artifact], tmp_path: Path) -> None:
    result = load_result(audited(tmp_path / "audit", inputs, {"npc": verdicts["npc"]}))
    assert result.negatives == []
    with pytest.raises(ConfigError, match="needs verdicts of at least one judge"):
        audited(tmp_path / "nothing", inputs, {})
