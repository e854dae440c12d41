"""What language models behind a server have answered: how it is read, and where it is kept."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from raydr.component import Config
from raydr.errors import ArtifactError, EndpointError
from raydr.models.prompt import WORDS, plain_word
from raydr.store.folder import Folder

#: A model that thinks aloud answers after this.
_THOUGHT = "</think>"
_FILE = "answers.sqlite"
_BUSY_S, _UPLOAD_S = 60.0, 60.0
_TABLE = "CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"


class RefusedError(EndpointError):
    """The server does not answer this question."""


class Reply(Config):
    """What a model has answered to one question.

    >>> Reply(content="Yes.").relevant, Reply(content="It depends").relevant
    (1.0, None)
    """

    content: str
    """In its own words."""

    probability: float | None = Field(default=None, ge=0, le=1)
    """Of yes against no, from the probabilities of its tokens; None if the server gave none."""

    prompt_tokens: int = Field(default=0, ge=0, lt=2**31)
    completion_tokens: int = Field(default=0, ge=0, lt=2**31)

    @property
    def relevant(self) -> float | None:
        """P(relevant): the probability, or 1 and 0 for yes and no; None if the answer cannot be read."""
        words = self.content.rpartition(_THOUGHT)[2].split()
        word = plain_word(words[0]) if words else ""
        if word not in WORDS:
            return None
        return float(word == "yes") if self.probability is None else self.probability


def read_reply(text: str, masked: Callable[[str], str] = lambda text: text) -> Reply:
    """The answer in a chat completion.

    P(yes) = Σ p(tokens that say yes) / Σ p(tokens that say yes or no), over the likeliest tokens at the place of the
    answer.

    Args:
        text: JSON, as a server has sent it.
        masked: takes out of the model's words what must not be kept.

    Raises:
        EndpointError: it is no chat completion.

    >>> likely = [{"token": token, "logprob": math.log(p)} for token, p in (("Yes", 0.6), ("no", 0.2))]
    >>> tokens = {"content": [{"token": "Yes", "top_logprobs": likely}]}
    >>> read_reply(json.dumps({"choices": [{"message": {"content": "Yes"}, "logprobs": tokens}]})).relevant
    0.75
    """
    try:
        completion = json.loads(text)
        choice = completion["choices"][0]
        tokens = (choice.get("logprobs") or {}).get("content") or []
        usage = completion.get("usage") or {}
        return Reply(
            content=masked(choice["message"].get("content") or ""),
            probability=_probability(tokens),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    # A server may send anything: JSON is a tree of any depth, with numbers of any size.
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise EndpointError(
            f"the server's answer is no chat completion ({type(error).__name__}): {masked(text)[:200]!r}. Is the "
            "endpoint the address that ends in /v1?"
        ) from None


def _probability(tokens: Sequence[Mapping[str, Any]]) -> float | None:
    thought = max((at for at, token in enumerate(tokens) if _THOUGHT in token["token"]), default=-1)
    answer = next((token for token in tokens[thought + 1 :] if plain_word(token["token"]) in WORDS), None)
    likely = (answer or {}).get("top_logprobs") or []
    yes, no = (
        math.fsum(math.exp(token["logprob"]) for token in likely if plain_word(token["token"]) == word)
        for word in WORDS
    )
    return min(1.0, yes / (yes + no)) if yes + no > 0.0 else None


class Answers:
    """Answers under the hash of the whole request: the model, the prompt and the texts, and not who serves the model.

    They are rows of one SQLite file, which several processes may use at a time and its owner alone can read.

    Args:
        path: of the file.
        after: called when an answer is on disk.
    """

    def __init__(self, path: str, after: Callable[[], None] = lambda: None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # SQLite's journal has the rights of the file.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # Opened and closed by one thread, used by another while that one waits.
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        # So a write waits for no disk, and is there after a kill all the same.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(_TABLE)
        self._after = after

    def find(self, digest: str) -> Reply | None:
        """The answer to the request with this hash; None if it was never asked."""
        row = self._connection.execute("SELECT reply FROM answers WHERE question = ?", [digest]).fetchone()
        return None if row is None else Reply.model_validate_json(row[0])

    def keep(self, digest: str, reply: Reply) -> None:
        """Write an answer, whole or not at all."""
        self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (digest, reply.model_dump_json()))
        self._after()

    def flush(self) -> None:
        """Have all answers in the file itself, and none beside it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_answers(folder: Folder) -> Iterator[Answers]:
    """The answers that are kept in a folder.

    SQLite needs a local file: on an object store a copy is used, and sent back each minute and at the end. Of two
    processes that ask at the same time the later one's copy stays there.

    Raises:
        ArtifactError: the file is damaged, or cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="raydr-answers-") as scratch:
        path = folder.path(_FILE) if folder.is_local else f"{scratch}/{_FILE}"
        sent = time.monotonic()

        def send(at_least_s: float = _UPLOAD_S) -> None:
            nonlocal sent
            if not folder.is_local and time.monotonic() - sent >= at_least_s:
                answers.flush()
                folder.filesystem.put_file(path, folder.path(_FILE))
                sent = time.monotonic()

        if not folder.is_local and folder.exists(_FILE):
            folder.filesystem.get_file(folder.path(_FILE), path)
        try:
            answers = Answers(path, send)
        except (sqlite3.Error, OSError) as error:
            raise _unusable(folder, error) from error
        try:
            yield answers
        except sqlite3.Error as error:
            raise _unusable(folder, error) from error
        finally:
            send(0.0)
            answers.close()


def _unusable(folder: Folder, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"cannot use {folder.path(_FILE)}: {error}. Check free space and permissions; if it is damaged, remove it, and "
        "what it has is asked again"
    )
