"""``raydr submit``: what is refused before anything is sent, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raydr.ops.submit.client import SubmittedJob
from raydr.verbs import operations as verb
from raydr.verbs.app import app

CONFIG = """
name: nq
workdir: s3://bucket/nq
data: {reader: {name: beir, path: /data/nq}}
tracking: {enabled: false}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return "run.yaml"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been sent; the job ends with status 3."""
    calls: list[dict[str, Any]] = []

    def build_request(*arguments: Any) -> dict[str, Any]:
        return dict(zip(("config", "verb", "arguments", "overrides", "sent", "submission_id"), arguments, strict=True))

    def send(request: dict[str, Any], address: str, resources: dict[str, float]) -> SubmittedJob:
        calls.append(request | {"resources": resources})
        return SubmittedJob("j1", "http://head:8265")

    monkeypatch.setattr(verb, "build_request", build_request)
    monkeypatch.setattr(verb, "send", send)
    monkeypatch.setattr(
        verb,
        "follow",
        lambda job: SubmittedJob(job.submission_id, job.address, "FAILED", 3),
    )
    return calls


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["submit", *arguments])


def test_the_verbs_options_are_handed_on_and_the_exit_status_comes_back(
    config: str, sent: list[dict[str, Any]]
) -> None:
    result = invoke(
        *(config, "train", "--set", "seed=3", "--again", "--env", "A=b=c", "--require-env", "S"),
        *("--entrypoint-num-cpus", "2", "--", "--name", "npc"),
    )
    assert result.exit_code == 3, result.output
    [call] = sent
    assert call["arguments"] == ["--name", "npc", "--again"]
    assert (call["verb"], call["overrides"], call["sent"].env) == ("train", ["seed=3"], {"A": "b=c"})
    assert (call["sent"].require_env, call["resources"]) == (["S"], {"num_cpus": 2.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--", "--nmae", "x"], "No such option: --nmae"),
        (["why"], "Missing argument"),
        (["inspect", "--again"], "No such option"),
        (["fly"], "is no verb"),
        (["submit"], "is no verb"),
        (["benchmark noise"], "is no verb"),
        (["train", "--env", "HF_TOKEN"], "--require-env HF_TOKEN"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(
    config: str, sent: list[dict[str, Any]], arguments: list[str], message: str
) -> None:
    result = invoke(config, *arguments)
    assert result.exit_code == 2
    # Typer folds its messages at the width of the terminal.
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not sent


@pytest.mark.parametrize(
    ("words", "named"),
    [
        # A file of the job's copy would be deleted with it.
        (["export", "--", "out"], "output 'out'"),
        (["search", "--", "--split", "test", "--trec", "run.trec"], "trec 'run.trec'"),
        # Settings after -- are checked as those before it.
        (["train", "--", "--set", "workdir=work"], "workdir 'work'"),
        (["train", "--", "--set", "train.num_epoch=3"], "train.num_epoch: unknown key"),
    ],
)
def test_what_the_options_of_the_verb_write_and_set_is_checked(
    config: str, sent: list[dict[str, Any]], words: list[str], named: str
) -> None:
    result = invoke(config, *words)
    assert (result.exit_code, named in result.output, sent) == (2, True, []), result.output
    assert invoke(config, "export", "--", "s3://bucket/out").exit_code == 3


def test_ctrl_c_leaves_the_job_and_says_how_to_stop_it(
    config: str, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(job: SubmittedJob) -> SubmittedJob:
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "follow", interrupted)
    result = invoke(config, "train")
    assert result.exit_code == 130
    assert "it continues" in result.output
    assert "ray job stop j1 --address http://head:8265" in result.output


def test_without_waiting_it_ends_when_the_job_is_sent(
    config: str, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "follow", lambda job: pytest.fail("followed"))
    assert invoke(config, "train", "--no-wait").exit_code == 0
