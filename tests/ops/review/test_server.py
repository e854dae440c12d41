"""The page's server: what is saved, whom it answers, and what reviewers see."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE_S
from starlette.testclient import TestClient

from ops.review.conftest import HOSTILE
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.noise.decisions import Decision, Decisions, append_decision
from raydr.ops.review.review import Review
from raydr.ops.review.server import listen, review_app

ADDRESS = "http://127.0.0.1:8765"


@pytest.fixture
def client(review: Review) -> TestClient:
    """A browser that shows the page."""
    return TestClient(review_app(review), base_url=ADDRESS, headers={"origin": ADDRESS})


def state(client: TestClient, reviewer: str = "ada", kind: str = "all") -> dict[str, Any]:
    answer = client.get("/state", params={"reviewer": reviewer, "kind": kind})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def decide(client: TestClient, verdict: str, reviewer: str = "ada", kind: str = "all") -> dict[str, Any]:
    label = state(client, reviewer, kind)["item"]["id"]
    body = {"reviewer": reviewer, "kind": kind, "label": label, "verdict": verdict}
    answer = client.post("/decide", json=body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_each_click_is_saved_and_the_next_label_shown(client: TestClient, review: Review) -> None:
    first = state(client)
    assert first["item"]["id"] == review.queue[0].label.id
    after = decide(client, "wrong")
    [line] = Decisions.read(str(review.file)).lines
    assert (line.label, line.verdict, line.reviewer) == (review.queue[0].label, "wrong", "ada")
    assert after["item"]["id"] == review.queue[1].label.id
    assert (after["decided"], after["total"]) == ({"right": 0, "wrong": 1, "unsure": 0}, len(review.queue))
    for verdict in ("right", "unsure"):
        after = decide(client, verdict)
    assert after["decided"] == {"right": 1, "wrong": 1, "unsure": 1}
    assert [decision.verdict for decision in review.decisions().lines] == ["wrong", "right", "unsure"]
    # A review that is set up anew, after a kill for example, goes on there.
    again = TestClient(review_app(Review(review.file, "train", review.verdicts, review.read)), base_url=ADDRESS)
    assert state(again) == after


def test_what_is_not_in_the_list_is_neither_undone_nor_counted(client: TestClient, review: Review) -> None:
    before = state(client)
    about = {"at": "", "reviewer": "ada", "subject": "pairs", "query_id": "q", "passage_id": "p", "texts": "t"}
    elsewhere = [Decision(**about, split=split, verdict="wrong") for split in ("dev", "train")]
    for decision in elsewhere:
        append_decision(review.file, decision)
    assert state(client) == before
    assert client.post("/undo", json={"reviewer": "ada"}).json() == before
    assert review.decisions().lines == tuple(elsewhere)


def test_undo_shows_the_last_label_again_whatever_is_filtered(client: TestClient, review: Review) -> None:
    assert not state(client)["can_undo"]
    assert client.post("/undo", json={"reviewer": "ada"}).json() == state(client)
    assert not review.file.exists()
    decide(client, "wrong", kind="negatives")
    decide(client, "right", kind="pairs")
    undone = client.post("/undo", json={"reviewer": "ada", "kind": "negatives"}).json()
    pair = next(item for item in review.queue if item.label.subject == "pairs")
    assert undone["item"]["id"] == pair.label.id
    assert [decision.verdict for decision in review.decisions().standing("ada")] == ["wrong"]
    # Others have nothing to undo.
    assert not client.post("/undo", json={"reviewer": "bob"}).json()["can_undo"]
    assert len(review.decisions().lines) == 3


def test_a_filter_shows_one_kind(client: TestClient, review: Review) -> None:
    for kind in ("pairs", "negatives"):
        mine = [item for item in review.queue if item.label.subject == kind]
        shown = state(client, kind=kind)
        assert (shown["total"], shown["item"]["id"], shown["item"]["kind"]) == (len(mine), mine[0].label.id, kind)
    for _ in (item for item in review.queue if item.label.subject == "pairs"):
        shown = decide(client, "right", kind="pairs")
    assert shown["item"] is None
    assert state(client)["item"]["kind"] == "negatives"


def test_reviewers_see_their_own_decisions_and_how_far_they_agree(client: TestClient, review: Review) -> None:
    for reviewer, verdicts in {"ada": ["wrong"] * 3 + ["right"], "bob": ["wrong"] * 2 + ["right"] * 2}.items():
        for verdict in verdicts:
            decide(client, verdict, reviewer, "pairs")
    shown = state(client, "eve", "pairs")
    assert shown["decided"] == {"right": 0, "wrong": 0, "unsure": 0}
    assert "ada and bob agree on 3 of 4, Cohen's κ 0.50" in shown["findings"]
    [pairs, negatives] = [finding for finding in shown["findings"] if "-train: " in finding]
    # A draw counts as right.
    assert pairs.startswith("npc-train: no drop of pairs is warranted yet by 4 decisions (at most 5 % right, with 95 %")
    assert re.search(
        "margin-bm25-train: no drop of candidates is warranted yet .* drops after about [0-9]+ decisions", negatives
    )


def test_only_the_page_itself_may_write_and_only_this_machine_read(client: TestClient, review: Review) -> None:
    body = {"reviewer": "eve", "label": review.queue[0].label.id, "verdict": "wrong"}
    for origin in ("http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:8765", "null", ""):
        for path in ("/decide", "/undo"):
            assert client.post(path, json=body, headers={"origin": origin}).status_code == 403
    bare = TestClient(review_app(review), base_url=ADDRESS)
    assert bare.post("/decide", json=body).status_code == 403
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "[::ffff:7f00:1]", ""):
        for path in ("/", "/state?reviewer=eve"):
            assert client.get(path, headers={"host": host}).status_code == 400
        assert client.post("/decide", json=body, headers={"host": host, "origin": f"http://{host}"}).status_code == 400
    assert not review.file.exists()
    # By its other name, as through a tunnel with a port of its own.
    tunnel = {"host": "localhost:9000", "origin": "http://localhost:9000"}
    assert client.post("/decide", json=body, headers=tunnel).status_code == 200


def test_what_makes_no_sense_is_refused_and_not_written(client: TestClient, review: Review) -> None:
    good = {"reviewer": "ada", "label": review.queue[0].label.id, "verdict": "wrong"}
    for change in ({"verdict": "undo"}, {"reviewer": " "}, {"reviewer": "a" * 81}, {"kind": "x"}, {"more": 1}):
        answer = client.post("/decide", json=good | change)
        assert (answer.status_code, next(iter(change)) in answer.json()["error"]) == (400, True)
    assert client.post("/decide", content=b"{").status_code == 400
    assert client.get("/state").status_code == 400
    assert client.get("/decide").status_code == 404
    gone = client.post("/decide", json=good | {"label": "0" * 16})
    assert (gone.status_code, "load the page again" in gone.json()["error"]) == (409, True)
    assert client.get("/../server.py").status_code == 404
    assert not review.file.exists()


def test_a_decision_that_cannot_be_written_is_said(client: TestClient, review: Review) -> None:
    label = state(client)["item"]["id"]
    review.file.mkdir()
    answer = client.post("/decide", json={"reviewer": "ada", "label": label, "verdict": "wrong"})
    assert answer.status_code == 500
    assert "Is a directory" in answer.json()["error"]


def test_the_page_runs_nothing_but_its_own_file(client: TestClient) -> None:
    page = client.get("/")
    policy = dict(directive.strip().split(" ", 1) for directive in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"]) == ("'none'", "'self'")
    assert "<script>" not in page.text
    assert not re.search(r"\son\w+=|style=", page.text)
    for name in ("review.js", "review.css"):
        assert f'"/{name}"' in page.text
        assert client.get(f"/{name}").status_code == 200
    # Texts come as JSON, and nothing takes them for a page.
    answer = client.get("/state", params={"reviewer": "ada"})
    assert HOSTILE in answer.json()["item"]["texts"][0]["text"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_port_that_is_taken_is_named() -> None:
    with listen(0) as bound, pytest.raises(ConfigError, match=rf"port {bound.getsockname()[1]} .*set another --port"):
        listen(bound.getsockname()[1])


# -- the command, killed


class Command:
    """``raydr review`` in a process of its own."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "raydr", "review", str(file), "--port", "0", "--reviewer", "ada b"]
        environment = os.environ | {"COLUMNS": "200"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self.output: list[str] = []
        for line in self.process.stderr:
            self.output.append(line)
            if match := re.search(r"open (http://127\.0\.0\.1:\d+)/\?reviewer=ada\+b ", line):
                self.address = match[1]
                return
        raise AssertionError("".join(self.output))

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, content, {"origin": self.address})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            reply: dict[str, Any] = json.load(answer)
            return reply

    def end(self, how: signal.Signals) -> str:
        self.process.send_signal(how)
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        self.process.wait(PATIENCE_S)
        return rest


@pytest.mark.e2e
def test_what_was_decided_survives_a_kill_and_the_same_command_goes_on(judged: RunConfig, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(judged.model_dump(mode="json")))
    command = Command(file)
    shown = [command.ask("/state?reviewer=ada")["item"]["id"]]
    for verdict in ("wrong", "right", "wrong"):
        body = {"reviewer": "ada", "label": shown[-1], "verdict": verdict}
        shown.append(command.ask("/decide", body)["item"]["id"])
    command.end(signal.SIGKILL)
    with (tmp_path / "decisions.jsonl").open("a") as opened:
        opened.write('{"at": "2026-01-01T00:00:0')
    command = Command(file)
    assert "is incomplete: it is ignored" in "".join(command.output).replace("\n", " ")
    state = command.ask("/state?reviewer=ada")
    assert (state["item"]["id"], state["decided"]) == (shown[-1], {"right": 1, "wrong": 2, "unsure": 0})
    assert (
        command.ask("/decide", {"reviewer": "ada", "label": shown[-1], "verdict": "unsure"})["decided"]["unsure"] == 1
    )
    output = command.end(signal.SIGINT)
    assert command.process.returncode == 0, output
    assert re.search(r"lines written +1\n +decisions +4\n +at +/", output)
    warranty = re.sub(r"\s+", " ", output)
    assert "npc-train: no drop of pairs is warranted yet by" in warranty
    assert "(at most 5 % right, with 95 % confidence);" in warranty
    assert [decision.verdict for decision in Decisions.read(str(tmp_path / "decisions.jsonl")).lines] == [
        "wrong",
        "right",
        "wrong",
        "unsure",
    ]
