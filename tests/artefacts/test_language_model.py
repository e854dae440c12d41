"""A language model looks again at what an earlier judge is unsure of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_stub import MODEL, ChatStub, serving
from made_stage import interrupt, make
from patience import PATIENCE_S

from artefacts.judge_inputs import DEPTH, NUM_QUERIES, JudgeInputs, make_inputs
from artefacts.test_judge import run, verdicts_of
from raydr.artefacts.judged import apply_verdicts, filter_pairs
from raydr.artefacts.language_model import ask_language_model, check_server
from raydr.data.dataset import Dataset
from raydr.data.tables import pairs_of, read_parquet
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, EndpointError
from raydr.models.prompt import PromptConfig
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.language_model import LanguageModel, LanguageModelJudge, LanguageModelNegatives
from raydr.noise.judges.margin import Margin
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

NOW = {"Retry-After-Ms": "1"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("language-model"), tiny_checkpoint)


@pytest.fixture(scope="module")
def ranks(inputs: JudgeInputs, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Of pairs: their ranks, in one part."""
    return run(inputs, Consistency(top_k=2, num_random=60), tmp_path_factory.mktemp("ranks") / "verdicts")


@pytest.fixture(scope="module")
def margins(inputs: JudgeInputs, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Of candidates: 9, 8, ... less the positive's 9; two are dropped of each query but q00. In two parts."""
    rule = Margin(mode="absolute", margin=1.5)
    return run(inputs, rule, tmp_path_factory.mktemp("margins") / "verdicts", model=False)


@pytest.fixture
def stub() -> Iterator[ChatStub]:
    with serving(ChatStub(relevant=lambda query, passage: 0.9 if query in passage else 0.2)) as server:
        yield server


def ask(
    inputs: JudgeInputs, earlier: Artifact, stub: ChatStub, folder: Path, pool: Pool | None = None, **changes: Any
) -> Artifact:
    kind = LanguageModel if earlier.info["subject"] == "pairs" else LanguageModelNegatives
    options = {"after": earlier.info["judge"], "model": MODEL, "endpoint": stub.address, "unsure": (0, 1)}
    judge: LanguageModelJudge = kind.model_validate(options | changes)
    stage = (ask_language_model, inputs.dataset, inputs.corpus, earlier)
    answers = Folder(str(folder.parent / "answers"))
    return make(folder, "verdicts", *stage, pool=pool, judge=judge, split="train", answers=answers)


def rows_of(made: Artifact) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["query_id"], row["passage_id"]): row for row in verdicts_of(made).to_pylist()}


def test_all_pairs_are_read_and_what_is_irrelevant_is_dropped(
    inputs: JudgeInputs, ranks: Artifact, stub: ChatStub, pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ask(inputs, ranks, stub, tmp_path / "v", pool)
    rows = rows_of(made)
    assert len(rows) == len(stub.asked) == NUM_QUERIES
    # The pairs of every fifth are mismatched.
    assert {row["query_id"] for row in rows.values() if row["action"] == "drop"} == {
        f"q{at:02d}" for at in range(0, 30, 5)
    }
    assert {row["judge"] for row in rows.values()} == {"language_model"}
    assert (rows["q01", "p01"]["score"], rows["q00", "p17"]["score"]) == (pytest.approx(0.1), pytest.approx(0.8))
    assert (made.info["detection"]["precision"], made.info["detection"]["recall"]) == (1.0, 1.0)
    assert (made.info["asked"], made.info["requests"], made.info["prompt_tokens"]) == (30, 30, 1500)
    [answers] = [read_parquet(made.local(part)).to_pylist() for part in made.parts("answers/train")]
    before = rows_of(ranks)
    for row in answers:
        earlier = before[row["query_id"], row["passage_id"]]
        assert (row["action"], row["score"]) == (earlier["action"], earlier["score"])
        assert (row["answer"], row["relevant"]) == (
            ("Yes", pytest.approx(0.9)) if row["relevant"] > 0.5 else ("No", pytest.approx(0.2))
        )
    assert made.parts() == sorted(["answers/train/part-00000-00000.parquet", "verdicts/train/part-00000-00000.parquet"])
    shown = " ".join(capsys.readouterr().err.split())
    assert "30 rows in doubt; 30 requests sent to tiny-judge now" in shown
    assert "tokens of all answers: 1,500 in, 30 out" in shown


def test_only_what_the_judge_before_is_unsure_of_is_asked_and_its_drops_are_undone(
    inputs: JudgeInputs, margins: Artifact, stub: ChatStub, tmp_path: Path
) -> None:
    three = threading.Barrier(3, timeout=PATIENCE_S)
    stub.before = lambda number: None if number else three.wait() and None
    made = ask(inputs, margins, stub, tmp_path / "v", max_requests=58, positives="relabel", at_once=3)
    rows, before = rows_of(made), rows_of(margins)
    # Flagging begins between the second and the third candidate of each of 29 queries.
    assert {abs(before[pair]["score"]) for pair in rows} == {0.5}
    assert (len(rows), made.info["asked"]) == (58, 58)
    assert stub.most_at_once == 3
    # The second is s.., which says what the query says: the first, dropped too, was not asked about.
    assert {pair[1][0] for pair, row in rows.items() if row["action"] == "relabel"} == {"s"}
    assert {row["action"] for pair, row in rows.items() if pair[1][0] == "p" and pair != ("q10", "p10")} == {"keep"}
    verdicts = {"margin": margins, "language_model_negatives": made}
    judged = make(tmp_path / "j", "negatives", apply_verdicts, inputs.negatives, verdicts, split="train")
    assert (judged.info["relabel"], judged.info["drop"]) == (29, 29)
    assert judged.info["keep"] == NUM_QUERIES * DEPTH - 58
    wrong = ask(inputs, margins, stub, tmp_path / "w", max_requests=58, positive_above=0.95)
    undone = {"margin": margins, "language_model_negatives": wrong}
    judged = make(tmp_path / "k", "negatives", apply_verdicts, inputs.negatives, undone, split="train")
    # All is kept that it has looked at, also what was dropped.
    assert (judged.info["relabel"], judged.info["drop"]) == (0, 29)


def test_what_was_answered_once_is_not_asked_again(
    inputs: JudgeInputs, ranks: Artifact, stub: ChatStub, tmp_path: Path
) -> None:
    first = ask(inputs, ranks, stub, tmp_path / "v", max_requests=10)
    assert len(stub.bodies) == 10
    more = ask(inputs, ranks, stub, tmp_path / "w", max_requests=12, negative_below=0.95)
    assert (len(stub.bodies), more.info["requests"], more.info["asked"]) == (12, 2, 12)
    # Tokens are those of all answers.
    assert (first.info["prompt_tokens"], more.info["prompt_tokens"]) == (500, 600)
    assert set(rows_of(first)) < set(rows_of(more))
    ask(inputs, ranks, stub, tmp_path / "x", max_requests=10, prompt=PromptConfig(task="it is short"))
    assert len(stub.bodies) == 22


def test_same_texts_are_asked_about_once(
    inputs: JudgeInputs, margins: Artifact, stub: ChatStub, tmp_path: Path
) -> None:
    made = ask(inputs, margins, stub, tmp_path / "v", passage_chars=1)
    # Candidates of a query look alike where their titles begin alike.
    assert len(stub.bodies) == len(set(stub.asked)) == made.info["requests"] < made.info["verdicts"] == 174


def test_what_is_not_answered_leaves_the_earlier_verdict(
    inputs: JudgeInputs, ranks: Artifact, stub: ChatStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drops = {pair for pair, row in rows_of(ranks).items() if row["action"] == "drop"}
    stub.relevant = lambda query, passage: 0.9
    stub.says = lambda query, passage: None if query in passage else "Hard to tell."
    stub.script.extend([(429, NOW, "slow down"), (400, {}, "too long")])
    made = ask(inputs, ranks, stub, tmp_path / "v", at_once=1)
    output = capsys.readouterr().err
    assert "5 answers are neither yes nor no, the first: 'Hard to tell.'" in output
    assert "1 questions were rejected, the first: " in output
    assert "answers HTTP 400: too long" in output
    assert "answers HTTP 429: slow down: retrying" in output
    assert (made.info["asked"], made.info["verdicts"]) == (30, 24)
    verdicts = {"consistency": ranks, "language_model": made}
    left = make(tmp_path / "d", "dataset", filter_pairs, inputs.dataset, verdicts, split="train")
    dropped = set(pairs_of(Dataset(left).dropped("train")))
    assert dropped == drops - set(rows_of(made)) != set()


def test_a_judging_that_was_cut_off_goes_on_where_it_was(
    inputs: JudgeInputs, margins: Artifact, stub: ChatStub, tmp_path: Path
) -> None:
    whole = ask(inputs, margins, stub, tmp_path / "whole" / "v")
    num = len(stub.bodies)
    stub.bodies.clear()
    lock = threading.Lock()

    def cut_off(number: int) -> None:
        with lock:
            stub.key = "another" if number >= 40 else ""

    stub.before = cut_off
    with pytest.raises(EndpointError, match="HTTP 401, the key is missing or wrong"):
        ask(inputs, margins, stub, tmp_path / "cut" / "v")
    paid = len(stub.bodies)
    stub.before, stub.key = lambda number: None, ""
    again = ask(inputs, margins, stub, tmp_path / "cut" / "v")
    assert 40 <= paid < num
    # What was under way when it ended is lost, and nothing else.
    assert len(stub.bodies) <= num + 16
    assert {name: part.checksum for name, part in again.manifest.parts.items()} == {
        name: part.checksum for name, part in whole.manifest.parts.items()
    }
    # Of a finished one a part is gone: it comes back without a request.
    paid = len(stub.bodies)
    interrupt(again, *again.parts()[:-1])
    assert ask(inputs, margins, stub, tmp_path / "cut" / "v").manifest.parts == again.manifest.parts
    assert len(stub.bodies) == paid


def test_a_judge_that_is_sure_of_everything_costs_nothing(
    inputs: JudgeInputs, ranks: Artifact, stub: ChatStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ask(inputs, ranks, stub, tmp_path / "v", unsure=(0.0, 0.0))
    assert (made.info["asked"], made.info["verdicts"], stub.bodies) == (0, 0, [])
    assert "repeats the verdicts of consistency: none has a probability of a wrong label" in capsys.readouterr().err


def test_the_server_is_looked_at_before_anything(
    stub: ChatStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.key = "sk-very-secret"
    judge = LanguageModel(model=MODEL, endpoint=stub.address, key_variable="JUDGE_KEY")
    with pytest.raises(ConfigError, match="the environment variable JUDGE_KEY, .* is not set"):
        check_server(judge)
    monkeypatch.setenv("JUDGE_KEY", "sk-wrong")
    with pytest.raises(EndpointError, match=r"judge language_model: .* HTTP 401") as refused:
        check_server(judge)
    assert "sk-wrong" not in str(refused.value)
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    check_server(judge)
    with pytest.raises(EndpointError, match="HTTP 404, the model does not exist.* the model other does not exist"):
        check_server(judge.model_copy(update={"model": "other"}))
    with pytest.raises(EndpointError, match="HTTP 404, .* the endpoint does not end in /v1"):
        check_server(judge.model_copy(update={"endpoint": stub.address.removesuffix("/v1")}))
    with pytest.raises(EndpointError, match="check that it runs, and its address"):
        check_server(judge.model_copy(update={"endpoint": "http://127.0.0.1:1/v1"}))
    stub.script.append((400, {}, "logprobs are not known"))
    with pytest.raises(EndpointError, match=r"logprobs are not known\. .* \{logprobs: null, top_logprobs: null\}"):
        check_server(judge)
    assert "probabilities" not in capsys.readouterr().err
    check_server(judge.model_copy(update={"request": {"logprobs": None}}))
    assert "gives no token probabilities: yes counts as 1 and no as 0" in capsys.readouterr().err
    stub.says = lambda query, passage: "<think>\nLet me see"
    with pytest.raises(EndpointError, match=r"answers a test question by '<think>.* raise max_tokens"):
        check_server(judge)


def test_the_key_is_in_no_file(
    inputs: JudgeInputs, ranks: Artifact, stub: ChatStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.key = "sk-very-secret"
    monkeypatch.setenv("JUDGE_KEY", stub.key)
    # A model that repeats what it should not know.
    stub.says = lambda query, passage: f"{'yes' if query in passage else 'no'}, {stub.key}"
    made = ask(inputs, ranks, stub, tmp_path / "v", key_variable="JUDGE_KEY")
    assert made.info["verdicts"] == NUM_QUERIES
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "answers.sqlite" in {path.name for path in files}
    assert not [path for path in files if b"very-secret" in path.read_bytes()]
