"""Shared fixtures: one local Ray for the whole session, tiny models and data made in process. No network."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("CI", "1")
# Threads of models this small only wait for each other; beside Ray's workers they take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray Train takes one report a look at its workers, and looks every 2 s: a step here takes milliseconds.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")

import pytest

from raydr.distributed.cluster import TIME_TO_START
from tests.tiny_bert import save_tiny_bert

# What raydr gives a Ray to come up is for people who wait for it. Nor is a process given up here that answers late: Ray
# would end, and with it all tests that share it.
os.environ |= {name: f"{5 * int(time)}" for name, time in TIME_TO_START.items()}
# A worker process that was lost while it came up is started again when its time is over: that is worth no longer wait.
os.environ |= {name: time for name, time in TIME_TO_START.items() if "worker" in name}
os.environ |= {"RAY_health_check_failure_threshold": "100"}
# Ray's processes are nice to others by default: beside tests that compute they would not come up for minutes.
os.environ |= {"RAY_worker_niceness": "0"}

if TYPE_CHECKING:
    from raydr.distributed.pool import Pool

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background makes them, and all that they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses Ray and what is slow, before tests are chosen by markers; skip GPU tests where there is none."""
    import torch

    for item in items:
        if "ray_local" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
        if any(item.get_closest_marker(name) for name in ("ray", "e2e", "cluster")):
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take back the threads that a benchmark or FAISS has given to all libraries of the process."""
    import torch

    torch.set_num_threads(1)


def pytest_exception_interact(call: pytest.CallInfo[object]) -> None:
    """End the run that was told to end: Ray turns SIGTERM into an exit of the test that happens to run.

    It would count as that test's failure, and all that follow would be run without a Ray.
    """
    if call.excinfo is not None and isinstance(call.excinfo.value, SystemExit):
        pytest.exit(
            f"the tests were ended from outside (SIGTERM), exit status {call.excinfo.value.code}", returncode=143
        )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Say what Ray has said last, where a process of the tests is gone: Ray ends its driver without a word."""
    if error is None:
        return
    for log in sorted(Path(tempfile.gettempdir()).glob(f"rt-{node.gateway.id}-*/session_latest/logs/*")):
        if log.name.startswith(("gcs_server", "raylet", "python-core-driver")) and log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
            print(f"\n--- {log}", *lines, sep="\n")  # noqa: T201


#: Looking for doctests imports a module, and what is declared in this one is to stay unknown.
collect_ignore = ["pipeline/strangers.py"]

WORDS = [
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "on",
    "for",
    "river",
    "city",
    "mountain",
    "ocean",
    "forest",
    "desert",
    "island",
    "valley",
    "bridge",
    "castle",
    "red",
    "blue",
    "green",
    "black",
    "white",
    "old",
    "new",
    "large",
    "small",
    "deep",
    "high",
    "long",
    "short",
    "fast",
    "slow",
    "north",
    "south",
    "east",
    "west",
    "king",
    "queen",
    "doctor",
    "teacher",
    "writer",
    "painter",
    "soldier",
    "farmer",
    "singer",
    "builder",
    "book",
    "song",
    "film",
    "play",
    "poem",
    "map",
    "lies",
    "flows",
    "stands",
    "rises",
    "ends",
    "begins",
    "holds",
    "keeps",
    "makes",
    "finds",
    "who",
    "what",
    "where",
    "when",
    "which",
    "how",
    "many",
    "first",
    "last",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the node's cache of this run apart: joined examples of an earlier run may be another version's."""
    os.environ["RAYDR_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """One Ray without dashboard for all ordinary tests."""
    import ray

    from raydr.distributed.cluster import RayConfig, connected

    process = os.environ.get("PYTEST_XDIST_WORKER", "")
    with tempfile.TemporaryDirectory(prefix=f"rt-{process}-") as temp_dir:
        with connected(RayConfig(num_cpus=2, num_gpus=0, object_store_gib=0.25, temp_dir=temp_dir)):
            yield
        assert not ray.is_initialized()


@pytest.fixture
def here() -> Iterator[None]:
    """A session in which small work is done in this process."""
    from raydr.distributed.cluster import RayConfig, ray_session

    with ray_session(RayConfig()):
        yield


@pytest.fixture(params=["here", pytest.param("ray", marks=pytest.mark.ray)])
def pool(request: pytest.FixtureRequest) -> Pool:
    """Each of the two ways in which a stage runs its work."""
    from raydr.distributed.pool import ThisProcess

    if request.param == "here":
        return ThisProcess()
    request.getfixturevalue("ray_local")
    from raydr.distributed.ray_pool import RayPool

    return RayPool()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A 2-layer BERT of width 32 with a WordPiece vocabulary of the words above."""
    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"), WORDS)


def make_sentence(seed: int, num_words: int) -> str:
    """Words picked by a fixed rule, so that the same seed gives the same text everywhere."""
    state, words = seed * 2654435761 % 2**32, []
    for _ in range(num_words):
        state = (state * 1664525 + 1013904223) % 2**32
        words.append(WORDS[(state >> 8) % len(WORDS)])
    return " ".join(words)


@pytest.fixture(scope="session")
def beir_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR data set: 120 passages, 60 queries (the first words of a passage), splits train, dev, test."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    passages = [
        {"_id": f"p{at:03d}", "title": f"title {WORDS[at % len(WORDS)]}", "text": make_sentence(at, 20)}
        for at in range(120)
    ]
    queries = [
        {
            "_id": f"q{at:02d}",
            "text": " ".join(passages[at]["text"].split()[:6]),
            "metadata": {"answers": [" ".join(passages[at]["text"].split()[2:4])]},
        }
        for at in range(60)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    for split, ids in {"train": range(40), "dev": range(40, 50), "test": range(50, 60)}.items():
        lines = ["query-id\tcorpus-id\tscore"] + [f"q{at:02d}\tp{at:03d}\t1" for at in ids]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a corpus of 120 passages and a data set of 40 training and 10 dev queries with negatives."""
    return make_tiny_data(tmp_path_factory.mktemp("tiny-data"), lambda at: 14)


@pytest.fixture(scope="session")
def ragged_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same with texts of 4 to 26 words."""
    return make_tiny_data(tmp_path_factory.mktemp("ragged-data"), lambda at: 4 + at * 5 % 23)


def make_tiny_data(folder: Path, num_words: Callable[[int], int]) -> tuple[str, str]:
    """Passages of so many words, and queries that are the middle of them."""
    from made_artefacts import make_corpus, make_dataset

    passages = [
        {"passage_id": f"p{at:03d}", "title": WORDS[at % len(WORDS)], "text": make_sentence(at, num_words(at))}
        for at in range(120)
    ]
    corpus = make_corpus(folder / "corpus", passages)
    tables: dict[str, dict[str, list[dict[str, object]]]] = {"queries": {}, "qrels": {}, "negatives": {}}
    for split, numbers in {"train": range(40), "dev": range(40, 50)}.items():
        tables["queries"][split] = [
            {"query_id": f"q{at:02d}", "text": " ".join(make_sentence(at, num_words(at)).split()[3:9])}
            for at in numbers
        ]
        tables["qrels"][split] = [{"query_id": f"q{at:02d}", "passage_id": f"p{at:03d}"} for at in numbers]
        tables["negatives"][split] = [
            {
                "query_id": f"q{at:02d}",
                "passage_id": f"p{(at * 7 + 13 * rank) % 120:03d}",
                "miner": "test",
                "rank": rank,
                "score": 10.0 - rank,
                "positive_score": 11.0,
            }
            for at in numbers
            for rank in range(1, 7)
            if (at * 7 + 13 * rank) % 120 != at
        ]
    dataset = make_dataset(folder / "dataset", corpus, tables)
    return str(corpus.artifact.folder), str(dataset.artifact.folder)
