from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.artefacts import embeddings as stage
from raydr.artefacts.embeddings import EncodeParts, encode_texts, tokenize_part
from raydr.data.embeddings import Embeddings
from raydr.distributed import arithmetic as encoders
from raydr.distributed.arithmetic import Arithmetic, choose_device, plan_encoders, resolve_arithmetic
from raydr.distributed.pool import Needs, Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import ArtifactError, ConfigError, DataError, ModelError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.encode_config import EncodeConfig
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder, publish_files
from raydr.store.identity import MANIFEST
from tests.artefacts import stub
from tests.conftest import make_sentence
from tests.made import make_corpus, make_dataset, make_model
from tests.made_stage import make
from tests.patience import PATIENCE_S

TEXTS = [make_sentence(at, 5 + at % 7) for at in range(47)]


#: Stub encoders do not compute in it.
ARITHMETIC = Arithmetic("float32", "cpu", 4096)


@pytest.fixture
def model(tmp_path: Path) -> Artifact:
    return make_model(tmp_path / "model")


@pytest.fixture
def corpus(tmp_path: Path) -> Artifact:
    return make_corpus(tmp_path / "corpus", TEXTS, part_rows=10)


def encode(
    pool: Pool, model: Artifact, corpus: Artifact, output: Path, encoder: str = "StubEncoder", **settings: Any
) -> Artifact:
    return make(
        output, "embeddings", encode_texts, model, corpus, pool=pool, settings=EncodeConfig(**settings),
        arithmetic=ARITHMETIC, tokenizer=stub.TOKENIZER, encoder=f"tests.artefacts.stub:{encoder}",
    )  # fmt: skip


def trouble_of(model: Artifact, at_part: int) -> Path:
    """Encoders of this model go wrong once, at that part."""
    trouble = Path(model.folder.path("trouble"))
    trouble.write_text(str(at_part))
    return trouble


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The same corpus with the same model, encoded in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model, corpus = make_model(folder / "model"), make_corpus(folder / "corpus", TEXTS, part_rows=10)
    return encode(ThisProcess(), model, corpus, folder / "out")


def expected_vectors() -> np.ndarray:
    tokens = stub.StubTokenizer("passage")([""] * len(TEXTS), TEXTS)
    return stub.StubEncoder("", "passage", "float32", "cpu", 1).encode(tokens)


def test_each_part_has_the_ids_and_vectors_of_its_passages(
    pool: Pool, model: Artifact, corpus: Artifact, tmp_path: Path, undisturbed: Artifact
) -> None:
    artifact = encode(pool, model, corpus, tmp_path / "out", max_actors=2, cpus_per_actor=0.5)
    embeddings = Embeddings(artifact)
    assert embeddings.starts.tolist() == [0, 10, 20, 30, 40, 47]
    assert (embeddings.dim, embeddings.artifact.info["side"]) == (stub.DIM, "passage")
    assert (embeddings.model_fingerprint, embeddings.source_fingerprint) == (model.fingerprint, corpus.fingerprint)
    ids = [passage_id for part in range(5) for passage_id in embeddings.ids(part).to_pylist()]
    assert ids == [f"p{at}" for at in range(47)]
    np.testing.assert_array_equal(embeddings.take(np.arange(47)), expected_vectors())
    assert artifact.manifest.parts == undisturbed.manifest.parts
    artifact.verify()


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_a_real_model_gives_the_same_bytes_in_both_pools(
    tiny_checkpoint: str, corpus: Artifact, tmp_path: Path
) -> None:
    config = ModelConfig(checkpoint=tiny_checkpoint, passage=SideConfig(max_length=32))

    def save(making: Building, pool: Pool) -> dict[str, Any]:
        model = DualEncoder.from_config(config, seed=0)
        publish_files(making.folder, lambda path: model.save(path, build_tokenizers(config)))
        making.record_files()
        return {}

    model = make(tmp_path / "model", "model", save)
    made = []
    for pool in (ThisProcess(), RayPool()):
        settings = EncodeConfig(dtype="float32")
        how = {"settings": settings, "arithmetic": resolve_arithmetic(settings, pool)}
        made.append(make(tmp_path / type(pool).__name__, "embeddings", encode_texts, model, corpus, pool=pool, **how))
    here, there = made
    assert here.manifest.parts == there.manifest.parts
    assert here.info == there.info
    assert here.info["dim"] == 32


@pytest.mark.usefixtures("ray_local")
def test_more_encoders_than_fit_leave_room_for_tokenising(model: Artifact, tmp_path: Path) -> None:
    """Two would fit in 2 CPUs, and no tokenising task beside them: nothing would ever come to an end."""
    corpus = make_corpus(tmp_path / "corpus", TEXTS, part_rows=1)
    settings = {"max_actors": 8, "cpus_per_actor": 0.9, "cpus_per_tokenizer": 0.5}
    artifact = encode(RayPool(), model, corpus, tmp_path / "out", **settings)
    np.testing.assert_array_equal(Embeddings(artifact).take(np.arange(47)), expected_vectors())


def test_queries_of_a_split(
    pool: Pool,
    model: Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raydr.console._Verbosity.details", True)
    dataset = make_dataset(tmp_path / "dataset", "test", TEXTS, part_rows=20)
    made = make(
        tmp_path / "made", "embeddings", encode_texts, model, dataset=dataset, pool=pool, split="test",
        settings=EncodeConfig(), arithmetic=ARITHMETIC, tokenizer=stub.TOKENIZER, encoder=stub.ENCODER,
    )  # fmt: skip
    embeddings = Embeddings(made)
    assert (embeddings.artifact.info["side"], embeddings.artifact.info["split"]) == ("query", "test")
    assert embeddings.ids(2).to_pylist() == [f"q{at}" for at in range(40, 47)]


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_killed_actor_changes_nothing(model: Artifact, corpus: Artifact, tmp_path: Path, undisturbed: Artifact) -> None:
    trouble = trouble_of(model, 3)
    artifact = encode(RayPool(), model, corpus, tmp_path / "out", "KilledEncoder")
    assert not trouble.exists()
    assert artifact.manifest.parts == undisturbed.manifest.parts


@pytest.mark.invariant
def test_resumed_equals_uninterrupted_bit_for_bit(
    pool: Pool, model: Artifact, corpus: Artifact, tmp_path: Path, undisturbed: Artifact
) -> None:
    trouble_of(model, 3)
    output = tmp_path / "out"
    with pytest.raises(Exception, match="the encoder broke"):
        encode(pool, model, corpus, output, "RaisingEncoder")
    finished = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.arrow")}
    # The second may not have been written whole when the third went wrong.
    assert 1 <= len(finished) < 5
    assert not (output / MANIFEST).exists()
    with pytest.raises(ArtifactError, match="not complete"):
        Embeddings.open(str(output))
    resumed = encode(pool, model, corpus, output, "RaisingEncoder")
    assert finished.items() <= {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.arrow")}.items()
    assert resumed.manifest.parts == undisturbed.manifest.parts


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_storage_that_ends_in_the_middle_of_a_part(
    model: Artifact, corpus: Artifact, tmp_path: Path, undisturbed: Artifact
) -> None:
    output = tmp_path / "out"
    trouble_of(model, 3)
    with pytest.raises(ArtifactError, match=r"cannot write .*out/part-0000\d\.arrow: File too large\. .* are kept\.$"):
        encode(RayPool(), model, corpus, output, "CrampedEncoder")
    parts = sorted(path.name for path in output.glob("*part*"))
    assert all(name.startswith("part-") for name in parts), "half a file was left"
    assert 1 <= len(parts) < 5
    resumed = encode(ThisProcess(), model, corpus, output, "CrampedEncoder")
    assert resumed.manifest.parts == undisturbed.manifest.parts


def test_a_vector_that_is_not_finite_is_named(pool: Pool, model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"part-0000\d\.arrow of .*'p\d*1' \(row 1\) is not finite") as raised:
        encode(pool, model, corpus, tmp_path / "out", "NanEncoder")
    assert type(raised.value) is ModelError
    assert not list((tmp_path / "out").glob("part-*.arrow"))


def test_one_vector_a_text(model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\d+ ids for \d+ vectors"):
        encode(ThisProcess(), model, corpus, tmp_path / "out", "LazyEncoder")


@pytest.mark.usefixtures("ray_local")
def test_no_silent_fallback_to_the_cpu() -> None:
    with pytest.raises(ConfigError, match="the cluster has 0 GPUs"):
        choose_device(EncodeConfig(gpus_per_actor=0.5))


@pytest.mark.usefixtures("ray_local")
def test_what_cannot_fit_fails_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"not enough for encode\.min_actors 2 of 1 CPUs"):
        plan_encoders(EncodeConfig(min_actors=2, max_actors=2), 9)
    with pytest.raises(ConfigError, match=r"less than encode\.min_actors"):
        plan_encoders(EncodeConfig(min_actors=2, max_actors=1), 9)
    with pytest.raises(ConfigError, match=r"encode\.min_actors 4 of 0\.6 CPUs"):
        plan_encoders(EncodeConfig(min_actors=4, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2), 9)
    fitting = EncodeConfig(min_actors=3, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2)
    assert plan_encoders(fitting, 9) == (3, 8)


@pytest.mark.parametrize(
    ("num_parts", "settings", "expected"),
    [
        # 2,102 parts of Wikipedia keep twelve nodes busy; left to itself Ray Data would ask for 1, 2, 4, 8, ...
        (2102, {"max_actors": 12}, (12, 12)),
        (2102, {"max_actors": 40}, (20, 40)),
        # A node boots longer than it takes an encoder to do a few parts.
        (20, {"max_actors": 12}, (5, 12)),
        (3, {"max_actors": 12}, (1, 3)),
        (20, {"min_actors": 8, "max_actors": 12}, (8, 12)),
    ],
)
def test_a_cluster_that_grows_is_asked_for_all_nodes_at_once(
    num_parts: int, settings: dict[str, int], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "cluster_capacity", lambda: {"CPU": 256.0, "GPU": 20.0})
    chosen = EncodeConfig(gpus_per_actor=1, cpus_per_actor=2, cpus_per_tokenizer=1, **settings)
    assert plan_encoders(chosen, num_parts) == (min(num_parts, chosen.min_actors), min(num_parts, chosen.max_actors))
    monkeypatch.setattr(encoders, "stated_capacity", lambda: {"CPU": 256.0, "GPU": 20.0})
    assert plan_encoders(chosen, num_parts) == expected


def test_a_part_is_encoded_while_the_one_before_is_written(
    model: Artifact, corpus: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Artifact
) -> None:
    """The first part is written only once the second is encoded; and the encoder is asked by one thread at a time."""
    output, asked = Folder(str(tmp_path / "out")), []
    job = stage.Job(
        model, corpus, tuple(corpus.parts("passages")), output, "passage", ARITHMETIC, 1,
        stub.TOKENIZER, "tests.artefacts.stub:StubEncoder",
    )  # fmt: skip
    worker, second = EncodeParts(job), threading.Event()
    encode_now, write_now = worker.encoder.encode, stage.write_table

    def encode_one(tokens: Any) -> Any:
        assert worker._encoding.locked()
        asked.append(threading.current_thread())
        if len(asked) == 2:
            second.set()
        return encode_now(tokens)

    def write(folder: Folder, name: str, table: Any) -> Any:
        assert second.wait(timeout=PATIENCE_S)
        return write_now(folder, name, table)

    monkeypatch.setattr(worker.encoder, "encode", encode_one)
    monkeypatch.setattr(stage, "write_table", write)
    batches = [tokenize_part({"part": np.array([part])}, job) for part in range(5)]
    with ThreadPoolExecutor(EncodeParts.calls_at_once) as threads:
        made = list(threads.map(worker, batches))
    assert len(set(asked)) == 2
    assert {part["name"][0]: part["checksum"][0] for part in made} == {
        name: part.checksum for name, part in undisturbed.manifest.parts.items()
    }


def test_an_interrupted_part_is_made_again(model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    """A part whose file was cut off after it was recorded is noticed by its checksum."""
    trouble_of(model, 3)
    with pytest.raises(Exception, match="the encoder broke"):
        encode(ThisProcess(), model, corpus, tmp_path / "out", "RaisingEncoder")
    victim = next((tmp_path / "out").glob("part-*.arrow"))
    victim.write_bytes(victim.read_bytes()[:-8])
    encode(ThisProcess(), model, corpus, tmp_path / "out", "RaisingEncoder").verify()


def test_errors_of_raydr_come_back_as_themselves(pool: Pool) -> None:
    def fail() -> None:
        raise ModelError("as raised")

    with pytest.raises(ModelError) as raised:
        pool.run(fail, needs=Needs(0.1))
    assert type(raised.value) is ModelError
    assert str(raised.value) == "as raised"


@pytest.mark.usefixtures("ray_local")
def test_an_error_does_not_keep_the_encoders_alive(model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    """Who holds the error would hold Ray's pipeline, and its actors their CPUs."""
    with pytest.raises(ModelError) as raised:
        encode(RayPool(), model, corpus, tmp_path / "out", "NanEncoder")
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    held = {type(value).__module__ for frame in frames for value in frame.f_locals.values()}
    assert not [module for module in held if module.startswith("ray.data")]
