"""Answers of language models, kept under all that they depend on: no question is paid for twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydr.noise.questions import Reply
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of


@dataclass(frozen=True)
class Answers:
    """A folder of answers, one small file each; several processes may use it.

    The name of a file is the hash of the whole request: the model, the prompt and the texts. Who serves the model is no
    part of it.

    Args:
        folder: where they are.
    """

    folder: Folder

    def find(self, question: Mapping[str, Any]) -> Reply | None:
        """The answer to a request; None if it was never asked."""
        try:
            return Reply.model_validate(self.folder.read_json(self._name(question)))
        except FileNotFoundError:
            return None

    def keep(self, question: Mapping[str, Any], reply: Reply) -> None:
        """Write an answer, whole or not at all."""
        self.folder.write_json(self._name(question), reply.model_dump())

    @staticmethod
    def _name(question: Mapping[str, Any]) -> str:
        digest = fingerprint_of(question)
        return f"{digest[:2]}/{digest}.json"
