"""An audit of tiny data with injected noise: figures against loops over the verdicts, the page, reuse, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_stage import interrupt, make

from raydr.data.schema import read_parquet, to_table, write_parquet
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
from raydr.noise.passage_kinds import MISMATCHED_POSITIVE, POSITIVE, RANDOM
from raydr.pages.noise_plots import parse_fit
from raydr.stages.audit import audit, load_result, show
from raydr.stages.audit_parts import AuditInputs, audit_pairs
from raydr.stages.judge import judge
from raydr.stages.pool import Pool, ThisProcess
from raydr.stages.ray_pool import RayPool
from raydr.stages.scoring import scoring_of
from raydr.store.artifact import Artifact, Building, begin
from raydr.store.folder import write_part
from raydr.store.identity import Identity
from stages.judge_inputs import DEPTH, FLOAT32, NUM_QUERIES, JudgeInputs, make_cross_encoder, make_inputs

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
            judge,
            inputs.dataset,
            inputs.corpus,
            judge=rule,
            split="train",
            seed=0,
            settings=EncodeConfig(),
            scoring=inputs.scoring,
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
        audit,
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
        settings=EncodeConfig(),
        scoring=inputs.scoring,
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
        judge,
        inputs.dataset,
        inputs.corpus,
        # It keeps all that it reads.
        judge=PairClassifier(after="consistency", unsure=(0.5, 0.8), negative_below=0.0),
        split="train",
        seed=0,
        settings=EncodeConfig(),
        scoring=scoring_of(ThisProcess(), reader, EncodeConfig(), FLOAT32),
        negatives=None,
        earlier=verdicts["consistency"],
    )
    given = {name: verdicts[name] for name in ("consistency", "npc", "margin")}
    # npc comes after nobody.
    made = audited(tmp_path / "audit", inputs, given | {"pair_classifier": again}, inputs.negatives)
    first, second = (
        {
            row["query_id"]: row["action"]
            for name in one.parts("verdicts")
            for row in read_parquet(one.local(name)).to_pylist()
        }
        for one in (verdicts["consistency"], again)
    )
    flagged = {query_id for query_id, action in (first | second).items() if action == "drop"}
    assert 0 < len(flagged) < sum(action == "drop" for action in first.values())
    result = load_result(made)
    assert result.suspected_by == "consistency, then pair_classifier"
    assert result.negatives[0].trusted_queries.num_queries == NUM_QUERIES - len(flagged)


def test_shares_are_those_of_the_verdicts(verdicts: dict[str, Artifact], made: Artifact) -> None:
    result = load_result(made)
    assert [one.judge for one in result.pairs] == ["npc", "consistency"]
    assert [one.judge for one in result.negatives] == ["margin", "guide"]
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
    found = result.negatives[0]
    assert (found.all_queries.num_flagged, found.trusted_queries.num_flagged) == (len(flagged), len(trusted))
    assert found.all_queries.num_candidates == NUM_QUERIES * DEPTH
    assert found.trusted_queries.num_queries == NUM_QUERIES - len(suspected)
    by_query = [row["query_id"] for row in trusted]
    assert found.trusted_queries.share_of_queries == len(set(by_query)) / (NUM_QUERIES - len(suspected))
    assert found.trusted_queries.max_number == max(by_query.count(one) for one in by_query)
    # Each planted s.. sits at rank 2.
    planted = [row for row in trusted if row["passage_id"].startswith("s")]
    assert found.trusted_queries.flagged_by_rank[2] >= len(planted) > 0
    assert result.negative_agreement.both_JJ.tolist() == [[(NUM_QUERIES - len(suspected)) * DEPTH] * 2] * 2
    known = [row for row in negatives if row["truth"]]
    assert result.num_known == len(known)
    assert result.num_known_trusted == sum(row["query_id"] not in suspected for row in known) > 0
    assert made.info["false_negative_share.margin"] == found.trusted_queries.share_flagged


def test_what_the_detector_rests_on_is_kept(verdicts: dict[str, Artifact], made: Artifact) -> None:
    npc = verdicts["npc"]
    kept = [row for name in npc.parts("detection") for row in read_parquet(npc.local(name)).to_pylist()]
    assert len(kept) == NUM_QUERIES
    detector = npc.info["detector"]
    fit = parse_fit(detector["fit"])
    assert isinstance(fit, MixtureFit)
    assert fit.bimodal
    perplexity = np.array([row["perplexity"] for row in kept])
    posterior = np.array([row["log_posterior"] for row in kept])
    assert np.allclose(fit.log_posterior(perplexity), posterior)
    probability = np.array([row["probability"] for row in kept])
    assert load_result(made).pairs[0].mean_probability == pytest.approx(float(probability.mean()))
    assert npc.info["detection"]["calibration_error"] is not None
    assert sum(one["count"] for one in npc.info["detection"]["bins"]) == NUM_QUERIES


def test_the_page_shows_offenders_beside_their_annotation_and_nothing_from_outside(made: Artifact) -> None:
    page = (made.folder.open("report.html").read()).decode()
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    for text in (
        "Mismatched pairs",
        "False negatives",
        "Most suspicious pairs by npc",
        "the true passage, replaced on purpose",
    ):
        assert text in page
    plots = set(made.parts("plots"))
    assert {
        f"plots/{name}.png" for name in ("perplexity_npc", "scores", "false_negative_ranks", "reliability_pairs")
    } <= plots
    assert {f"plots/agreement_{kind}.png" for kind in ("pairs", "negatives")} <= plots
    assert page.count("data:image/png") == len(plots)
    offenders = read_parquet(made.local("offenders.parquet")).to_pylist()
    worst = [row for row in offenders if row["judge"] == "npc"]
    assert [row["score"] for row in worst] == sorted((row["score"] for row in worst), reverse=True)
    assert worst[0]["truth"] is True
    roles = [text["role"] for text in worst[0]["texts"]]
    assert roles == ["query", "annotated, suspicious", "the true passage, replaced on purpose"]
    suspicious = next(row for row in offenders if row["judge"] == "margin")
    assert [text["role"] for text in suspicious["texts"]] == ["query", "annotated", "candidate, suspicious"]
    assert re.match(r"found by bm25, round 0, rank \d, score", suspicious["facts"][0])


def test_the_sample_holds_each_kind_of_passage_and_no_known_positive_as_a_random_one(made: Artifact) -> None:
    rows = [row for name in made.parts("scores") for row in read_parquet(made.local(name)).to_pylist()]
    count = {kind: sum(row["kind"] == kind for row in rows) for kind in {row["kind"] for row in rows}}
    assert count["positives"] + count["mismatched positives"] == NUM_QUERIES
    assert count["mismatched positives"] == NUM_QUERIES // 5
    # The planted ones, and the positive of q10 that its miner has found again.
    assert count["known false negatives"] == NUM_QUERIES + 1
    annotated = {(row["query_id"], row["passage_id"]) for row in rows if row["kind"] in (POSITIVE, MISMATCHED_POSITIVE)}
    random = {(row["query_id"], row["passage_id"]) for row in rows if row["kind"] == RANDOM}
    assert random
    assert not random & annotated
    assert all(np.isfinite(row["score"]) for row in rows)


def test_the_figures_can_be_read_back_and_shown(made: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads(made.folder.open("summary.json").read())
    assert AuditResult.from_json(raw).to_json() == raw
    show(made)
    said = capsys.readouterr().err
    for title in ("mismatched pairs", "false negatives, without queries that npc suspects", "against the truth"):
        assert title in said


def test_an_interrupted_audit_goes_on_to_the_same_parts(
    inputs: JudgeInputs, verdicts: dict[str, Artifact], made: Artifact
) -> None:
    interrupt(made, "sample.parquet")
    again = audited(Path(made.folder.root), inputs, verdicts, inputs.negatives)
    assert again.manifest.parts == made.manifest.parts
    assert again.info == made.info


@pytest.mark.invariant
def test_ray_makes_the_same_figures(
    inputs: JudgeInputs, verdicts: dict[str, Artifact], made: Artifact, ray_local: None, tmp_path: Path
) -> None:
    there = audited(tmp_path / "audit", inputs, verdicts, inputs.negatives, RayPool())
    assert there.manifest.parts == made.manifest.parts
    assert there.info == made.info


def test_judges_that_cut_what_they_judge_differently_are_put_side_by_side(tmp_path: Path) -> None:
    rows = [{"query_id": f"q{at}", "passage_id": "p", "score": 0.0, "action": "drop", "weight": 0.0} for at in range(6)]
    folders = {}
    for name, pieces in {"margin": [rows], "classifier": [rows[:2], rows[2:4], rows[4:]]}.items():
        with begin(str(tmp_path / name), Identity(kind="verdicts", config={"judge": name})) as making:
            assert isinstance(making, Building)
            for at, piece in enumerate(pieces):
                table = to_table("verdicts", [row | {"judge": name} for row in piece])
                part = f"verdicts/train/part-00000-{at:05d}.parquet"
                making.record(part, write_part(making.folder, part, len(table), lambda p, t=table: write_parquet(t, p)))
            folders[name] = making.finish()
    inputs = AuditInputs("train", None, None, None, folders)
    found = audit_pairs(inputs, ["margin", "classifier"], "verdicts/train/part-00000-")
    assert found.agreement.both_JJ.tolist() == [[6, 6], [6, 6]]
    assert found.agreement.both_flagged_JJ.tolist() == [[6, 6], [6, 6]]


def test_pairs_alone_need_no_candidates(inputs: JudgeInputs, verdicts: dict[str, Artifact], tmp_path: Path) -> None:
    result = load_result(audited(tmp_path / "audit", inputs, {"npc": verdicts["npc"]}))
    assert (result.negatives, result.negative_agreement) == ([], None)
    with pytest.raises(ConfigError, match="needs the verdicts of at least one judge"):
        audited(tmp_path / "nothing", inputs, {})
