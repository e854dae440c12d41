"""``raydr audit`` and ``raydr report``: what is asked is asked of the right model, and lands on the page."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.artefacts.audit import load_result
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.noise.margins import CrossFitConfig
from raydr.pipeline.judging import active_judges
from raydr.verbs import noise as verb
from raydr.verbs.app import app


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    settings: dict[str, Any] = {
        "name": "mine",
        "inject_noise": {"share": 0.25},
        "train": {"num_epochs": 1},
        "negatives": {"depth": 4},
        "judge": {"judges": [{"name": "consistency", "num_random": 20}]},
    }
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))


def invoke(config: RunConfig, verb: str, *options: str) -> str:
    file = Path(config.workdir).parent / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    result = CliRunner().invoke(app, [verb, str(file), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_judges_are_separated_by_commas_and_the_report_shows_what_they_say(config: RunConfig) -> None:
    output = invoke(config, "audit", "--judges", "consistency, margin,", "--split", "train")
    # There is no trained model, and an audit does not train one.
    assert "has no model 'trained'" in output
    places = Places.of(config.workdir)
    assert places.names("verdicts") == [
        "verdicts/consistency-train-untrained",
        "verdicts/margin-bm25-train-untrained",
    ]
    audit = places.open("audits/untrained-train", "audit")
    assert audit.manifest.identity.config["judges"] == ["consistency", "margin"]
    invoke(config, "report", "--set", "name=other")
    page = Path(config.workdir, "report.html").read_text()
    assert "other" in page
    assert "audits/untrained-train/" in page


def test_faults_of_a_split_that_no_judge_is_needed_for_are_on_its_page(
    config: RunConfig, beir_folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(beir_folder, data)
    corpus = [json.loads(line) for line in (data / "corpus.jsonl").read_text().splitlines()]
    queries = {row["_id"]: row for row in map(json.loads, (data / "queries.jsonl").read_text().splitlines())}
    judged = {split: (data / "qrels" / f"{split}.tsv").read_text().splitlines() for split in ("train", "test")}
    test_ids = [line.split("\t")[0] for line in judged["test"][1:]]
    positive = judged["test"][1].split("\t")[1]
    # A copy of a positive that nobody judged; a judgment of a passage that is not there; a query that is trained on
    # too, one that another one repeats, and one that is nothing but white space.
    [copied] = [row for row in corpus if row["_id"] == positive]
    corpus.append(copied | {"_id": "copy"})
    judged["test"].append(f"{test_ids[0]}\tnowhere\t1")
    queries[test_ids[1]]["text"] = queries[judged["train"][1].split("\t")[0]]["text"]
    queries[test_ids[3]]["text"] = queries[test_ids[2]]["text"]
    (data / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (data / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries.values()))
    (data / "qrels" / "test.tsv").write_text("\n".join(judged["test"]) + "\n")
    changes = ["--model", "untrained", "--set", f"data.reader.path={data}", "--set", "inject_noise=null"]
    changes += ["--set", "data.max_bad_rows=1"]
    output = " ".join(invoke(config, "audit", "--split", "test", *changes).split())
    page = html.unescape((Path(config.workdir) / "audits" / "untrained-test" / "report.html").read_text())
    for fault in (
        "LEAKAGE: 1 queries of test are also queries of train, word for word or nearly",
        "1 rows of all splits were left out when the data were prepared",
        "test: 1 queries have a copy of a positive without a judgment",
        "test: 2 queries have the text of another query of the split",
    ):
        assert fault in output
        assert fault in page
    # The training split has the leak, and no fault of its own.
    invoke(config, "audit", *changes)
    assert load_result(Places.of(config.workdir).open("audits/untrained-train", "audit")).faults[1:] == [
        "LEAKAGE: 1 queries of train are also queries of another split, word for word or nearly: measures of held-out "
        "queries are too high. data.leaked_queries: leave_out leaves them out of the training split"
    ]


def test_without_judges_those_of_the_config_are_asked(config: RunConfig) -> None:
    [audit] = raydr.audit(config, model="untrained")
    assert audit.manifest.identity.config["judges"] == ["consistency"]


def test_a_quick_audit_trains_nothing_and_ends_with_the_command_that_acts_on_it(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrossFitConfig, "doubt", lambda folds, _: "In doubt, train." if not folds.num_epochs else "")
    output = invoke(config, "audit", "--judges", "npc", "--quick")
    # Further settings change nothing as long as the option stands.
    assert "In doubt, train. Leave out --quick." in output
    places = Places.of(config.workdir)
    assert "cross-fit-train" not in output
    result = load_result(places.open("audits/quick-train", "audit"))
    [pairs] = result.pairs
    assert result.headline in " ".join(output.split())
    last = output.strip().splitlines()[-1]
    assert re.match(r"next.*raydr (train|evaluate|review) .*run\.yaml", last)
    assert last.endswith("run.yaml --set variants.npc.loss=npc") == bool(pairs.num_flagged)


def _listed(output: str) -> list[str]:
    """Return the labels of the artefacts that a verb lists before it makes them."""
    return re.findall(r"(\S+): new", output)


def test_a_quick_answer_comes_first_and_stands_beside_the_better_one(config: RunConfig) -> None:
    small = ("--judges", "npc", "--set", "cross_fit.num_random=10", "--set", "cross_fit.num_epochs=1")
    announced = _listed(invoke(config, "audit", *small, "--dry-run"))
    both = invoke(config, "audit", *small)
    assert set(announced) == set(_listed(both))
    places = Places.of(config.workdir)
    quick, better = (load_result(places.open(f"audits/{name}-train", "audit")) for name in ("quick", "untrained"))
    words = " ".join(both.split())
    assert words.index(quick.headline) < words.index("the whole audit trains 2 models") < words.rindex(better.headline)
    # Both stay, in whatever order they are asked for, and what is there is not made again.
    with pytest.raises(ConfigError, match="--quick asks the untrained checkpoint, got --model trained"):
        raydr.audit(config, judges="npc", model="trained", quick=True)
    assert "nothing to make" in invoke(config, "audit", *small, "--quick")
    assert "a first answer" not in invoke(config, "audit", *small)


def test_the_next_step_goes_by_what_the_audit_shows(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(config: RunConfig = config, split: str = "train", **changes: Any) -> tuple[str, list[str], str]:
        findings = SimpleNamespace(**{"reason": "", "num_flagged": 0, **changes})
        result = SimpleNamespace(pairs=[findings], split=split, train_split="train")
        monkeypatch.setattr(verb, "load_result", lambda _: result)
        made: Any = [None]
        return verb.next_after_audit(made, config)

    purpose = "to train through them, and compare"
    assert step(num_flagged=3) == ("evaluate", ["--set", "variants.npc.loss=npc"], purpose)
    robust = RunConfig.parse(config.model_dump(mode="json") | {"variants": {"mine": {"loss": "npc"}}})
    assert step(robust, num_flagged=3) == ("evaluate", [], purpose)
    assert step() == ("train", [], "")
    assert step(reason="too close")[0] == "review"
    # No training learns from the pairs of another split.
    assert step(split="dev", num_flagged=3)[:2] == ("review", ["--split", "dev"])


def test_the_truth_is_no_judge(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="truth is no judge to audit"):
        raydr.audit(config, judges="truth")
    with pytest.raises(ConfigError, match="unknown judge 'oracle'"):
        raydr.audit(config, judges="oracle")


def _next_after_judging(
    config: RunConfig, asked: list[str], kind: str = "dataset", split: str = "train", **info: Any
) -> list[str] | None:
    active = active_judges(config.judge, [config.judge.judge(name) for name in asked], on_negatives=False)
    inputs = {"dataset": "key"} | {f"verdicts/{name}": "key" for name in sorted(rule.name for rule in active)}
    identity = SimpleNamespace(kind=kind, inputs=inputs, config={"split": split})
    made: Any = [SimpleNamespace(manifest=SimpleNamespace(identity=identity), info=info)]
    step = verb.next_after_judge(made, config)
    assert step is None or step[0] == "train"
    return None if step is None else step[1]


@pytest.mark.parametrize(
    ("judges", "asked", "options"),
    [
        # Under a name of its own: the name of the config's training may be taken by a training without judges.
        ([], ["npc"], ["--name", "kept-by-npc", "--set", "judge.judges=[npc]"]),
        # A judge that comes after another one stands behind it.
        ([], ["calibrated"], ["--name", "kept-by-npc-calibrated", "--set", "judge.judges=[npc,calibrated]"]),
        (["npc"], ["npc"], []),
        # The config's own judge has settings, which its name alone would lose.
        ([{"name": "npc", "num_random": 50}], ["npc", "consistency"], None),
        ([], [], None),
    ],
)
def test_the_step_after_judging_trains_on_what_these_judges_keep(
    config: RunConfig, judges: list[Any], asked: list[str], options: list[str] | None
) -> None:
    config = RunConfig.parse(config.model_dump(mode="json") | {"judge": {"judges": judges}})
    assert _next_after_judging(config, asked, judgments_before=12, judgments_after=9) == options
    # Where nothing was dropped, or on a split that is not trained on, the same model would be trained again.
    assert _next_after_judging(config, asked, judgments_before=9, judgments_after=0) is None
    assert _next_after_judging(config, asked, judgments_before=9, judgments_after=9) is None
    assert _next_after_judging(config, asked, split="dev", judgments_before=12, judgments_after=9) is None


@pytest.mark.parametrize("own", ["bm25", "source"])
def test_the_step_after_judging_draws_from_the_judged_candidates(config: RunConfig, own: str) -> None:
    settings = {"negatives": {"miner": own}, "train": {"num_hard_negatives": int(own == "bm25")}}
    config = RunConfig.parse(config.model_dump(mode="json") | settings)
    options = _next_after_judging(config, ["margin"], kind="negatives", miner="bm25", drop=3)
    needed = [] if own == "bm25" else ["--set", "negatives.miner=bm25", "--set", "train.num_hard_negatives=1"]
    assert options == ["--name", "kept-by-margin", "--set", "judge.judges=[margin]", *needed]
    assert _next_after_judging(config, ["margin"], kind="negatives", miner="bm25", drop=0) is None
