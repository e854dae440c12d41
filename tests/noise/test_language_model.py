"""Which rows a language model is asked about, and what its settings allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_language_model import make_language_model
from pydantic import ValidationError

from raydr.component import findings
from raydr.config.sections import JudgeConfig
from raydr.errors import ConfigError
from raydr.models.cross_encoder import PairTokenizer
from raydr.models.prompt import PromptConfig
from raydr.noise.evidence import evidence
from raydr.noise.judges.asked import Reader
from raydr.noise.judges.base import ScoredCandidates
from raydr.noise.judges.language_model import LanguageModel, LanguageModelNegatives

WRONG_N = np.array([0.0, 0.45, 0.05, 0.8, 0.5, 0.95, 0.21, 1.0])


@pytest.mark.parametrize(
    ("unsure", "max_requests", "rows"),
    [
        ((0.2, 0.81), 100, [1, 3, 4, 6]),
        ((0.5, 1.0), 100, [3, 4, 5, 7]),
        ((0.0, 1.0), 100, [*range(8)]),
        ((0.0, 1.0), 3, [1, 4, 6]),
        ((0.3, 0.4), 3, []),
    ],
)
def test_doubtful_rows_are_asked_about_the_most_doubtful_first(
    unsure: tuple[float, float], max_requests: int, rows: list[int]
) -> None:
    judge = LanguageModel(unsure=unsure, max_requests=max_requests)
    assert judge.choose(evidence(WRONG_N, WRONG_N > 0.5, WRONG_N)).tolist() == rows


def test_scores_that_are_no_probabilities_are_doubtful_around_the_edge_of_flagging() -> None:
    scores_N = np.linspace(-3.0, 3.0, 61)
    evidence_N = evidence(scores_N, scores_N > 1.0)
    chosen = LanguageModel(unsure=(0.3, 0.7)).choose(evidence_N)
    assert np.abs(scores_N[chosen] - 1.0).max() < 0.4 * scores_N.std()
    assert {39, 40, 41} <= set(chosen.tolist())


def test_probabilities_become_verdicts() -> None:
    three = ScoredCandidates(np.array([0.9, 0.5, 0.2]), np.array([0, 1, 2, 3]))
    pairs = LanguageModel(negative_below=0.4).judge(three)
    assert (pairs.action.tolist(), pairs.weight.tolist()) == (["keep", "keep", "drop"], [1.0, 1.0, 0.0])
    assert pairs.score.tolist() == pytest.approx([0.1, 0.5, 0.8])
    candidates = LanguageModelNegatives(positive_above=0.6).judge(three)
    assert (candidates.action.tolist(), candidates.score.tolist()) == (["drop", "keep", "keep"], [0.9, 0.5, 0.2])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"unsure": [0.8, 0.2]}, r"unsure=\[0.8, 0.2\] is no range of probabilities"),
        ({"unsure": [0.1, 1.5]}, "is no range of probabilities"),
        ({"endpoint": "localhost:8000"}, "endpoint"),
        ({"key_variable": "sk-123"}, "key_variable"),
        ({"model": "m", "checkpoint": "c"}, "has both model 'm', .* and checkpoint 'c', .* set only one of them"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        LanguageModel(**changes)


@pytest.mark.parametrize(
    "endpoint", ["http://tok-1@host/v1", "https://u:tok-1@h/v1", "http://h/v1?key=tok-1", "http://h/#tok-1"]
)
def test_an_endpoint_that_holds_a_secret_is_refused_without_showing_it(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="holds more than an address") as raised:
        LanguageModel(model="m", endpoint=endpoint)
    assert not [line for line in findings(raised.value) if "tok-1" in line]


def test_a_question_holds_the_texts_as_they_are_and_no_more_than_asked_for() -> None:
    request = {"max_tokens": None, "top_p": 0.5}
    judge = LanguageModel(model="m", prompt=PromptConfig(task="it fits {so}"), passage_chars=20, request=request)
    body = judge.question("q {task}", "title", "x" * 50)
    assert (body["model"], body["top_p"], body["temperature"], "max_tokens" in body) == ("m", 0.5, 0, False)
    system, user = (message["content"] for message in body["messages"])
    assert "whether it fits {so}." in system
    assert "q {task}" in user
    assert f"title\n{'x' * 14}\n</passage>" in user


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="judge language_model has no model: set model"):
        LanguageModel().require_model()


@pytest.mark.parametrize(
    ("judges", "match"),
    [
        (["language_model"], r"language_model comes after 'npc', which is no judge of pairs .*; there is none"),
        (["language_model", "npc"], "there is none"),
        (["margin", {"name": "language_model", "after": "margin"}], "no judge of pairs"),
        (["people", {"name": "language_model", "after": "people"}], "there is none"),
        (["npc", "guide", "language_model_negatives"], "no judge of negatives .*; there is guide"),
        (["npc", {"name": "language_model", "after": ""}], "after\n  String should have at least 1 character"),
        (["npc", {"name": "classifier", "after": "npc"}], "after 'npc', which is no judge of negatives"),
        ([{"name": "pair_classifier", "after": "npc"}, "npc"], "pair_classifier comes after 'npc'.*; there is none"),
    ],
)
def test_it_comes_after_a_judge_of_the_same_things(judges: list[Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        JudgeConfig.model_validate({"judges": judges})
    JudgeConfig.model_validate({"judges": ["npc", "language_model", "classifier", "language_model_negatives"]})


@pytest.mark.invariant
def test_a_checkpoint_is_shown_what_a_server_is(tmp_path: Path) -> None:
    judge = LanguageModel(checkpoint=make_language_model(tmp_path / "lm"), prompt=PromptConfig(task="it fits"))
    asked = judge.asks(JudgeConfig())
    assert isinstance(asked, Reader)
    tokenizer = PairTokenizer(asked.settings.model)
    for title in ("a title", ""):
        messages = judge.question("a query", title, "a text")["messages"]
        whole = tokenizer.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, return_dict=True
        )["input_ids"]
        assert tokenizer(["a query"], [title], ["a text"]).ids.tolist() == whole


def test_a_checkpoint_that_cannot_be_read_is_told_at_once(tiny_checkpoint: str) -> None:
    with pytest.raises(ValidationError, match=r"max_length is 1024, but .* has positions for 128 tokens only"):
        LanguageModel(checkpoint=tiny_checkpoint)


def test_keys_hold_what_the_way_of_asking_uses() -> None:
    server, checkpoint = LanguageModel(model="m"), LanguageModel(checkpoint="somebody/model")
    of_server = {"max_requests": 5, "passage_chars": 9, "request": {"a": 1}, "endpoint": "https://x.org/v1"}
    assert checkpoint.model_copy(update=of_server).content() == checkpoint.content()
    of_checkpoint = {"max_length": 99, "prompt": PromptConfig(template={"style": "short"})}
    assert server.model_copy(update=of_checkpoint).content() == server.content()
    for name, value in of_checkpoint.items():
        assert checkpoint.model_copy(update={name: value}).content() != checkpoint.content(), name


def test_what_only_says_how_to_ask_does_not_change_the_verdicts() -> None:
    judge = LanguageModel(model="m")
    same = {"endpoint": "https://x.org/v1", "key_variable": "KEY", "at_once": 3, "timeout_s": 7.0, "max_retries": 1}
    assert judge.model_copy(update=same).content() == judge.content()
    other = {
        "model": "n",
        "prompt": PromptConfig(task="t"),
        "unsure": (0.0, 1.0),
        "max_requests": 5,
        "passage_chars": 9,
        "request": {"a": 1},
    }
    for name, value in {**other, "negative_below": 0.3}.items():
        assert judge.model_copy(update={name: value}).content() != judge.content(), name
