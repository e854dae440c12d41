"""An audit of tiny data with injected noise: figures against loops over the verdicts, the page, reuse, refusals."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from raydr.config.run import RunConfig
from raydr.data.schema import read_parquet, to_table, write_parquet
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.graph.job import open_job
from raydr.noise.audit_result import AuditResult
from raydr.noise.detectors.base import MixtureFit
from raydr.pages.noise_plots import parse_fit
from raydr.stages.audit import load_result
from raydr.stages.audit_parts import audit_pairs
from raydr.stages.audit_scores import MISMATCHED_POSITIVE, POSITIVE, RANDOM
from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import write_part
from stages.judge_inputs import DEPTH, NUM_QUERIES, JudgeInputs, make_inputs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str, ray_local: None) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("audit"), tiny_checkpoint)


@pytest.fixture(scope="module")
def config(inputs: JudgeInputs) -> RunConfig:
    raw = inputs.config.model_dump(mode="json")
    # The tiny encoder has not learned anything: a wide margin flags some, and not all.
    raw["judge"] |= {
        "judges": [
            {"name": "npc", "num_random": 20},
            {"name": "consistency", "num_random": 40},
            {"name": "margin", "mode": "absolute", "margin": 0.02},
            "guide",
        ]
    }
    return RunConfig.parse(raw)


@pytest.fixture(scope="module")
def made(config: RunConfig) -> Artifact:
    with open_job(config) as job:
        return job.audit([], "train")


def test_shares_are_those_of_the_verdicts(config: RunConfig, made: Artifact) -> None:
    assert made.folder.url.endswith("audits/untrained-train")
    result = load_result(made)
    assert [one.judge for one in result.pairs] == ["npc", "consistency"]
    assert [one.judge for one in result.negatives] == ["margin", "guide"]
    place = made.folder.url.rsplit("/audits", 1)[0]
    npc = Artifact.open(f"{place}/verdicts/npc-train-untrained", "verdicts")
    margin = Artifact.open(f"{place}/verdicts/margin-bm25-train-untrained", "verdicts")
    # The guide has a model of its own: its verdicts do not depend on the model that is audited with.
    Artifact.open(f"{place}/verdicts/guide-bm25-train", "verdicts")

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


def test_what_the_detector_rests_on_is_kept(made: Artifact) -> None:
    place = made.folder.url.rsplit("/audits", 1)[0]
    npc = Artifact.open(f"{place}/verdicts/npc-train-untrained", "verdicts")
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
    for text in ("Mismatched pairs", "False negatives", "Most suspicious pairs by npc", "replaced by it on purpose"):
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
    assert roles == ["query", "annotated, suspicious", "replaced by it on purpose"]
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


def test_the_same_audit_is_reused_and_the_figures_can_be_read_back(config: RunConfig, made: Artifact) -> None:
    with open_job(config) as job:
        again = job.audit([], "train", model="untrained")
    assert again.manifest.created == made.manifest.created
    raw = json.loads(made.folder.open("summary.json").read())
    assert AuditResult.from_json(raw).to_json() == raw


def test_an_interrupted_audit_goes_on_to_the_same_parts(config: RunConfig, made: Artifact) -> None:
    folder = made.folder
    # As a kill leaves it: no manifest, the plan, the sample recorded.
    folder.remove("manifest.json")
    folder.write_json("plan.json", made.manifest.identity.model_dump(mode="json"))
    folder.write_json(".done/sample.parquet.json", made.manifest.parts["sample.parquet"].model_dump())
    with open_job(config) as job:
        again = job.audit([], "train")
    assert again.manifest.parts == made.manifest.parts
    assert again.info == made.info


def test_judges_that_cut_what_they_judge_differently_are_put_side_by_side(tmp_path: Path) -> None:
    rows = [{"query_id": f"q{at}", "passage_id": "p", "score": 0.0, "action": "drop", "weight": 0.0} for at in range(6)]
    folders = []
    for judge, pieces in {"margin": [rows], "classifier": [rows[:2], rows[2:4], rows[4:]]}.items():
        with begin(str(tmp_path / judge), Identity(kind="verdicts", config={"judge": judge})) as making:
            assert isinstance(making, Building)
            for at, piece in enumerate(pieces):
                table = to_table("verdicts", [row | {"judge": judge} for row in piece])
                name = f"verdicts/train/part-00000-{at:05d}.parquet"
                making.record(name, write_part(making.folder, name, len(table), lambda p, t=table: write_parquet(t, p)))
            folders.append(making.finish().folder)
    found = audit_pairs(["margin", "classifier"], folders, "verdicts/train/part-00000-", 3)
    assert found.agreement.both_JJ.tolist() == [[6, 6], [6, 6]]
    assert found.agreement.both_flagged_JJ.tolist() == [[6, 6], [6, 6]]


def test_pairs_alone_need_no_candidates(config: RunConfig) -> None:
    with open_job(config, overwrite=True) as job:
        made = job.audit(["npc"], "train")
    result = load_result(made)
    assert (result.negatives, result.negative_agreement) == ([], None)
    assert "negatives" not in made.manifest.identity.inputs


def test_what_cannot_be_audited_is_refused(config: RunConfig) -> None:
    with open_job(config) as job:
        with pytest.raises(ConfigError, match="truth is no judge"):
            job.audit(["truth"], "train")
        with pytest.raises(ConfigError, match="unknown judge 'oracle'"):
            job.audit(["oracle"], "train")
        with pytest.raises(ArtifactError, match="there is no model 'best'"):
            job.audit(["npc"], "train", model="best")


def test_the_page_of_the_run_collects_it(config: RunConfig, made: Artifact) -> None:
    with open_job(config) as job:
        path = job.report()
    page = Path(path).read_text(encoding="utf-8")
    assert "Audit of train with model untrained" in page
    assert 'href="audits/untrained-train/report.html"' in page
    assert "npc-train-untrained" in page
    latest = Artifact.open(made.folder, "audit")
    captions = latest.info["captions"]
    assert set(captions) == set(latest.parts("plots"))
    for caption in captions.values():
        assert f"<figcaption>{html.escape(caption)}</figcaption>" in page
    assert not re.search(r'src="(?!data:)', page)


def test_other_inputs_of_the_untrained_encoder_are_refused_and_with_overwrite_made(config: RunConfig) -> None:
    """Last here: it replaces what the others have read."""
    raw = config.model_dump(mode="json")
    raw["model"]["query"]["max_length"] += 1
    changed = RunConfig.parse(raw)
    with open_job(changed) as job, pytest.raises(FingerprintError, match=r"models/untrained was made differently"):
        job.audit(["npc"], "train")
    with open_job(changed, overwrite=True) as job:
        assert job.audit(["npc"], "train").manifest.identity.kind == "audit"
