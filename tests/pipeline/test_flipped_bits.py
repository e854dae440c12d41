"""A changed byte anywhere in a finished working folder is remade, refused by the file's name, or without effect."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import small_run

import raydr
from raydr.artefacts.bm25 import open_bm25
from raydr.artefacts.evaluation import load_result
from raydr.artefacts.places import NAMES, Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.errors import ArtifactError, RaydrError
from raydr.models.dual_encoder import load_tower
from raydr.pipeline.garbage import find_garbage
from raydr.pipeline.running import read_times
from raydr.seeding import stable_hash64
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

NUM_PLACES = 100
SYSTEMS = ["bm25", "untrained"]


@pytest.fixture(scope="module")
def work(beir_folder: Path, tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished working folder."""
    work = tmp_path_factory.mktemp("flipped") / "work"
    raydr.evaluate(config_of(beir_folder, tiny_checkpoint, work), SYSTEMS)
    return work


def config_of(beir_folder: Path, checkpoint: str, work: Path) -> RunConfig:
    return RunConfig.parse(small_run(beir_folder, checkpoint, work))


def files_of(work: Path) -> list[Path]:
    """All files that have bytes, by kind: names of artefacts are links to their folders."""
    return sorted(file for file in work.rglob("*") if file.is_file() and not file.is_symlink() and file.stat().st_size)


def used(work: Path) -> dict[str, Any]:
    """What verbs read of each artefact, through the classes that they read it with."""
    places, seen = Places.of(str(work)), {}
    for name in places.names():
        pointer = places.pointer(name)
        assert pointer is not None
        artifact = places.open(name, pointer.kind)
        seen[name] = (artifact.manifest.model_dump(mode="json"), digest(contents(artifact)))
    seen["times"] = sorted((time.stage, time.seconds) for time in read_times(places.root))
    return seen


def contents(artifact: Artifact) -> Iterator[Any]:
    match artifact.kind:
        case "corpus":
            corpus = Corpus(artifact)
            yield from (part.to_pylist() for part in corpus.parts())
            yield corpus.find(["p003", "p100"]).tolist()
        case "dataset":
            data = Dataset(artifact)
            yield from (data.queries(split).to_pylist() + data.qrels(split).to_pylist() for split in data.splits)
        case "embeddings":
            embeddings = Embeddings(artifact)
            yield from (embeddings.rows.part(part).to_pylist() for part in range(len(embeddings.part_names)))
        case "bm25":
            index = open_bm25.__wrapped__(artifact.folder, artifact.fingerprint)
            yield [hits.scores.tolist() for hits in index.search(["the red river", "king"], 10)]
        case "run":
            yield from (part.to_pylist() for part in Run(artifact).parts())
        case "evaluation":
            yield vars(load_result(artifact)).values()
        case "model":
            tower = load_tower(artifact.local_folder(), "query")
            yield [value.tolist() for value in tower.state_dict().values()]
        case _:
            yield from (Path(artifact.local(name)).read_bytes() for name in artifact.parts())


def digest(values: Iterator[Any]) -> str:
    hashed = hashlib.blake2b()
    for value in values:
        hashed.update(repr(value).encode())
    return hashed.hexdigest()


def flip(file: Path, at: int, bit: int) -> bytes:
    """Change one bit; returns what was there."""
    before = file.read_bytes()
    changed = bytearray(before)
    changed[at] ^= 1 << bit
    file.write_bytes(changed)
    return before


def places_to_flip(work: Path) -> list[tuple[Path, int, int]]:
    """The same for a seed: each file has a share, however small it is, so that all kinds are among them."""
    rng, files = np.random.default_rng(stable_hash64("flipped bits", 7)), files_of(work)
    chosen = [*files, *(files[at] for at in rng.integers(len(files), size=NUM_PLACES))]
    chosen = [chosen[at] for at in rng.permutation(len(chosen))][:NUM_PLACES]
    return [(file, int(rng.integers(file.stat().st_size)), int(rng.integers(8))) for file in chosen]


@pytest.mark.invariant
def test_a_flipped_bit_is_refused_by_name_or_without_effect(work: Path) -> None:
    expected = used(work)
    refused: dict[tuple[str, int, int], str] = {}
    changed = []
    for file, at, bit in places_to_flip(work):
        before = flip(file, at, bit)
        try:
            if used(work) != expected:
                changed.append((str(file), at, bit))
        except RaydrError as error:
            refused[str(file), at, bit] = str(error)
        file.write_bytes(before)
    assert changed == []
    assert len(refused) > NUM_PLACES // 2
    for (path, at, bit), message in refused.items():
        # One line, with the file, or the artefact that its manifest is of, and what to do.
        assert "\n" not in message, (path, at, bit)
        assert path in message, (path, at, bit, message)
        assert "again" in message, (path, at, bit, message)
    assert used(work) == expected


@pytest.mark.parametrize("kind", ["embeddings", "bm25", "corpus", "dataset"])
def test_what_is_made_from_it_is_refused_too_and_remade_with_again(
    kind: str, work: Path, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    """The one who reads is another verb, in another process."""
    copy = Path(shutil.copytree(work, tmp_path / "work", symlinks=True))
    config = config_of(beir_folder, tiny_checkpoint, copy)
    [before] = raydr.evaluate(config, SYSTEMS)
    for of in ("run", "evaluation"):
        shutil.rmtree(copy / "store" / of)
    parts = [file for file in files_of(copy / "store" / kind) if file.suffix in (".arrow", ".npy")]
    for file in parts:
        flip(file, file.stat().st_size // 2, 3)
    with pytest.raises(ArtifactError, match=r"differs from the checksum in the manifest") as refused:
        raydr.evaluate(config, SYSTEMS)
    assert any(file.name in str(refused.value) for file in parts)
    for file in parts:
        flip(file, file.stat().st_size // 2, 3)
    [after] = raydr.evaluate(config, SYSTEMS)
    assert after.info == before.info


def test_a_damaged_manifest_is_as_none(
    work: Path, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    copy = Path(shutil.copytree(work, tmp_path / "work", symlinks=True))
    config = config_of(beir_folder, tiny_checkpoint, copy)
    [before] = raydr.evaluate(config, SYSTEMS)
    [manifest] = copy.glob("store/evaluation/*/manifest.json")
    flip(manifest, manifest.read_text().index('"means"') + 200, 0)
    [after] = raydr.evaluate(config, SYSTEMS)
    assert after.info == before.info
    assert str(manifest) in capsys.readouterr().err.replace("\n", "")


def test_a_damaged_fact_is_found_out_anew(
    work: Path, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    copy = Path(shutil.copytree(work, tmp_path / "work", symlinks=True))
    facts = sorted(file for file in files_of(copy) if "facts" in file.parts)
    assert facts
    contents_before = [file.read_bytes() for file in facts]
    for file in facts:
        flip(file, file.read_text().index('"value"') + 10, 0)
    raydr.evaluate(config_of(beir_folder, tiny_checkpoint, copy), SYSTEMS)
    assert "found out anew" in " ".join(capsys.readouterr().err.split())
    assert [file.read_bytes() for file in facts] == contents_before


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[1]", b'{"kind": 3}', b"[" * 100_000])
def test_a_name_that_is_none_is_refused_in_a_line(content: bytes, work: Path, tmp_path: Path) -> None:
    places = Places(Folder(str(tmp_path)))
    file = tmp_path / NAMES / "corpus.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"corpus\.json .*remove it") as refused:
        places.open("corpus", "corpus")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"identity": 3}', None])
def test_gc_names_a_manifest_that_is_none(content: bytes | None, work: Path, tmp_path: Path) -> None:
    """None: a folder lies in its place."""
    copy = Path(shutil.copytree(work, tmp_path / "work", symlinks=True))
    manifest = next(copy.glob("store/run/*/manifest.json"))
    manifest.unlink()
    if content is None:
        manifest.mkdir()
    else:
        manifest.write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"{manifest} ") as refused:
        find_garbage(Places.of(str(copy)), 0)
    assert "\n" not in str(refused.value)
