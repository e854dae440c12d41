from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.data.embeddings import Embeddings
from raydr.errors import ArtifactError, ConfigError, DataError, ModelError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.encode_config import EncodeConfig
from raydr.stages.arithmetic import Arithmetic, choose_device, resolve_arithmetic
from raydr.stages.encode import encode_texts
from raydr.stages.encoders import plan_encoders
from raydr.stages.pool import Pool, ThisProcess
from raydr.stages.ray_pool import RayPool
from raydr.store.artifact import MANIFEST, Artifact, Building
from raydr.store.folder import publish_files
from tests.conftest import make_sentence
from tests.made import make_corpus, make_dataset, make_model
from tests.made_stage import make
from tests.stages import stub

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
        arithmetic=ARITHMETIC, tokenizer=stub.TOKENIZER, encoder=f"tests.stages.stub:{encoder}",
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
    ids = [one for part in range(5) for one in embeddings.ids(part).to_pylist()]
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


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("ray_local")
def test_more_encoders_than_fit_leave_room_for_tokenising(model: Artifact, tmp_path: Path) -> None:
    """Two would fit in 2 CPUs, and no tokenising task beside them: nothing would ever come to an end."""
    corpus = make_corpus(tmp_path / "corpus", TEXTS, part_rows=1)
    settings = {"max_actors": 8, "cpus_per_actor": 0.9, "cpus_per_tokenizer": 0.5}
    artifact = encode(RayPool(), model, corpus, tmp_path / "out", **settings)
    np.testing.assert_array_equal(Embeddings(artifact).take(np.arange(47)), expected_vectors())


def test_queries_of_a_split(pool: Pool, model: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = make_dataset(tmp_path / "dataset", "test", TEXTS, part_rows=20)

    def encode_split(split: str) -> Artifact:
        return make(
            tmp_path / split, "embeddings", encode_texts, model, dataset, pool=pool, split=split,
            settings=EncodeConfig(), arithmetic=ARITHMETIC, tokenizer=stub.TOKENIZER, encoder=stub.ENCODER,
        )  # fmt: skip

    embeddings = Embeddings(encode_split("test"))
    shares = re.findall(r"(\d+) %", " ".join(capsys.readouterr().err.split()))
    # What the encoders did with their time: encoded, read and wrote, waited.
    assert 99 <= sum(map(int, shares)) <= 101
    assert (embeddings.artifact.info["side"], embeddings.artifact.info["split"]) == ("query", "test")
    assert embeddings.ids(2).to_pylist() == [f"q{at}" for at in range(40, 47)]
    with pytest.raises(ConfigError, match=r"the dataset at .* has no queries/dev; it has queries/test"):
        encode_split("dev")


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
    assert 2 <= len(finished) < 5
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
    assert 2 <= len(parts) < 5
    resumed = encode(RayPool(), model, corpus, output, "CrampedEncoder")
    assert resumed.manifest.parts == undisturbed.manifest.parts


def test_a_vector_that_is_not_finite_is_named(pool: Pool, model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"part-0000\d\.arrow of .*'p\d*1' \(row 1\) is not finite") as raised:
        encode(pool, model, corpus, tmp_path / "out", "NanEncoder")
    assert type(raised.value) is ModelError
    assert not list((tmp_path / "out").glob("part-*.arrow"))


def test_one_vector_a_text(pool: Pool, model: Artifact, corpus: Artifact, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\d+ ids for \d+ vectors"):
        encode(pool, model, corpus, tmp_path / "out", "LazyEncoder")


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "gpus_per_actor is 0"),
        ({"device": "cpu", "gpus_per_actor": 1}, "device is cpu"),
        ({"gpus_per_actor": 0.5}, "the cluster has 0 GPUs"),
    ],
)
def test_no_silent_fallback_to_the_cpu(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_device(EncodeConfig(**settings))


@pytest.mark.usefixtures("ray_local")
def test_what_cannot_fit_fails_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"not enough for encode\.min_actors 2 of 1 CPUs"):
        plan_encoders(EncodeConfig(min_actors=2, max_actors=2))
    with pytest.raises(ConfigError, match=r"less than encode\.min_actors"):
        plan_encoders(EncodeConfig(min_actors=2, max_actors=1))
    with pytest.raises(ConfigError, match=r"encode\.min_actors 4 of 0\.6 CPUs"):
        plan_encoders(EncodeConfig(min_actors=4, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2))
    fitting = EncodeConfig(min_actors=3, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2)
    assert plan_encoders(fitting) == (3, 8)


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
        pool.run(fail, num_cpus=0.1)
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
