"""A tokenizer and encoders that stand in for a model: vectors follow from the text alone."""

from __future__ import annotations

import os
import resource
import signal
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raydr.models.tokens import Tokens
from tests.made import tokens_from_lists

TOKENIZER = "tests.artefacts.stub:load_tokenizer"
ENCODER = "tests.artefacts.stub:StubEncoder"
DIM = 8


def load_tokenizer(model: str, side: str) -> StubTokenizer:
    return StubTokenizer(side)


class StubTokenizer:
    def __init__(self, side: str) -> None:
        self.side = side

    def __call__(self, titles: list[str] | None, texts: list[str]) -> Tokens:
        assert (titles is None) == (self.side == "query")
        return tokens_from_lists([[zlib.crc32(word.encode()) % 30_000 for word in text.split()] for text in texts])


class StubEncoder:
    """The vector of a text is drawn with its token ids as the seed."""

    def __init__(
        self,
        model: str,
        side: str,
        dtype: str,
        device: str,
        token_budget: int,
        num_threads: int | None = None,
    ) -> None:
        self.model = Path(model)
        self.dim = DIM

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        vectors = np.zeros((tokens.num_rows, DIM), dtype=np.float16)
        for row in range(tokens.num_rows):
            ids = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
            vectors[row] = np.random.default_rng(ids.astype(np.uint32)).standard_normal(DIM)
        return vectors


class _TroubleEncoder(StubEncoder):
    """Goes wrong once, at the third part, if the model's folder has a file ``trouble``."""

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        trouble = self.model / "trouble"
        if trouble.exists():
            left = int(trouble.read_text()) - 1
            if left:
                trouble.write_text(str(left))
            else:
                trouble.unlink()
                self.fail()
        return super().encode(tokens)

    def fail(self) -> None:
        raise NotImplementedError


class RaisingEncoder(_TroubleEncoder):
    def fail(self) -> None:
        raise RuntimeError("the encoder broke")


class KilledEncoder(_TroubleEncoder):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CrampedEncoder(_TroubleEncoder):
    """From then on the system lets its process write only the beginning of a file."""

    def fail(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class NanEncoder(StubEncoder):
    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        vectors = super().encode(tokens)
        vectors[1, 0] = np.nan
        return vectors


class LazyEncoder(StubEncoder):
    """Gives one vector too few."""

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        return super().encode(tokens)[1:]
