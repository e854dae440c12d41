"""Parsing and storage of the answers of language models behind a server."""

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

#: End of a reasoning model's thoughts, before its answer.
_THOUGHT = "</think>"
_FILE = "answers.sqlite"
_BUSY_S, _UPLOAD_S = 60.0, 60.0
_TABLE = "CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"


class RefusedError(EndpointError):
    """Raised when the server rejects a single question."""


class Reply(Config):
    """Answer of a model to a question.

    >>> Reply(content="Yes.").relevant, Reply(content="It depends").relevant
    (1.0, None)
    """

    content: str
    """Text of the answer."""

    probability: float | None = Field(default=None, ge=0, le=1)
    """P(yes) against no, from the token probabilities; None if the server returned none."""

    prompt_tokens: int = Field(default=0, ge=0, lt=2**31)
    completion_tokens: int = Field(default=0, ge=0, lt=2**31)

    @property
    def relevant(self) -> float | None:
        """P(relevant): the probability if known, else 1 for yes and 0 for no; None for another answer."""
        words = self.content.rpartition(_THOUGHT)[2].split()
        word = plain_word(words[0]) if words else ""
        if word not in WORDS:
            return None
        return float(word == "yes") if self.probability is None else self.probability


def read_reply(text: str, masked: Callable[[str], str] = lambda text: text) -> Reply:
    """Parse a chat completion.

    P(yes) = Σ p(yes tokens) / Σ p(yes and no tokens), over the likeliest tokens at the position of the answer.

    Args:
        text: JSON from the server.
        masked: function that removes secrets from the model's text.

    Raises:
        EndpointError: the text is no chat completion.

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
    # The JSON may be nested to any depth, with numbers of any size.
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise EndpointError(
            f"the server's answer is no chat completion ({type(error).__name__}): {masked(text)[:200]!r}. Does the "
            "endpoint end in /v1?"
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
    """Store of answers, keyed by the hash of the request: model, prompt and texts, but not the server.

    The store is an SQLite file. Several processes may use it at a time; only its owner can read it.

    Args:
        path: path of the file.
        after: function called after each written answer.
    """

    def __init__(self, path: str, after: Callable[[], None] = lambda: None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # SQLite's journal inherits the file's permissions.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # A thread opens and closes the connection; another thread uses it while the first waits.
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        # A write does not wait for the disk, yet survives a killed process.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(_TABLE)
        self._after = after

    def find(self, digest: str) -> Reply | None:
        """Return the answer to the request with this hash; None without an answer."""
        row = self._connection.execute("SELECT reply FROM answers WHERE question = ?", [digest]).fetchone()
        return None if row is None else Reply.model_validate_json(row[0])

    def keep(self, digest: str, reply: Reply) -> None:
        """Write an answer atomically."""
        self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (digest, reply.model_dump_json()))
        self._after()

    def flush(self) -> None:
        """Move all answers from the journal into the file."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_answers(folder: Folder) -> Iterator[Answers]:
    """Open the answers in a folder.

    SQLite requires a local file. For an object store, a local copy is used, and uploaded each minute and at the end. If
    two processes write at the same time, the later upload wins.

    Raises:
        ArtifactError: the file is damaged or cannot be written.
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
        f"cannot use {folder / _FILE}: {error}. Check free space and permissions; if the file is damaged, remove "
        "it: its questions are then asked again"
    )
