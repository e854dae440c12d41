from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.config.run import RunConfig
from raydr.data.embeddings import Embeddings
from raydr.errors import ArtifactError, ConfigError, DataError, FingerprintError, ModelError, RaydrError
from raydr.models.encode_config import EncodeConfig
from raydr.stages.encode import choose_device, encode_passages, encode_queries, plan_actors
from raydr.store.artifact import MANIFEST, Artifact
from raydr.store.folder import Folder
from tests.conftest import make_sentence
from tests.made import make_corpus, make_dataset, make_model
from tests.stages import stub

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]

TEXTS = [make_sentence(at, 5 + at % 7) for at in range(47)]


def make_config(**encode: Any) -> RunConfig:
    raw = {"data": {"reader": {"name": "beir", "path": "unused"}}, "encode": {"dtype": "float32", **encode}}
    return RunConfig.parse(raw)


@pytest.fixture
def model(tmp_path: Path) -> Folder:
    return make_model(tmp_path / "model")


@pytest.fixture
def corpus(tmp_path: Path) -> Folder:
    return make_corpus(tmp_path / "corpus", TEXTS, part_rows=10)


def encode(model: Folder, corpus: Folder, output: Path, encoder: str = "StubEncoder", **settings: Any) -> Artifact:
    return encode_passages(
        make_config(**settings), model, corpus, Folder(str(output)),
        tokenizer=stub.TOKENIZER, encoder=f"tests.stages.stub:{encoder}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, ray_local: None) -> Artifact:
    """The same corpus with the same model, encoded in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return encode(make_model(folder / "model"), make_corpus(folder / "corpus", TEXTS, part_rows=10), folder / "out")


def expected_vectors() -> np.ndarray:
    tokens = stub.StubTokenizer("passage")([""] * len(TEXTS), TEXTS)
    return stub.StubEncoder("", "passage", "float32", "cpu", 1).encode(tokens)


def test_each_part_has_the_ids_and_vectors_of_its_passages(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    artifact = encode(model, corpus, tmp_path / "out", max_actors=2, cpus_per_actor=0.5)
    embeddings = Embeddings(artifact)
    assert embeddings.starts.tolist() == [0, 10, 20, 30, 40, 47]
    assert embeddings.dim == stub.DIM
    assert embeddings.model_fingerprint == Artifact.open(model, "model").fingerprint
    ids = [one for part in range(5) for one in embeddings.part(part)[0]]
    assert ids == [f"p{at}" for at in range(47)]
    np.testing.assert_array_equal(embeddings.take(np.arange(47)), expected_vectors())
    artifact.verify()


@pytest.mark.timeout(180)
def test_more_encoders_than_fit_leave_room_for_tokenising(model: Folder, tmp_path: Path) -> None:
    """Two would fit in 2 CPUs, and no tokenising task beside them: nothing would ever come to an end."""
    corpus = make_corpus(tmp_path / "corpus", TEXTS, part_rows=1)
    artifact = encode(model, corpus, tmp_path / "out", max_actors=8, cpus_per_actor=0.9, cpus_per_tokenizer=0.5)
    np.testing.assert_array_equal(Embeddings(artifact).take(np.arange(47)), expected_vectors())


def test_queries_of_a_split(model: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = make_dataset(tmp_path / "dataset", "test", TEXTS, part_rows=20)
    kwargs = {"tokenizer": stub.TOKENIZER, "encoder": stub.ENCODER}
    artifact = encode_queries(make_config(), model, dataset, "test", Folder(str(tmp_path / "out")), **kwargs)
    shares = re.findall(r"(\d+) %", " ".join(capsys.readouterr().err.split()))
    # What the encoders did with their time: encoded, read and wrote, waited.
    assert 99 <= sum(map(int, shares)) <= 101
    embeddings = Embeddings(artifact)
    assert embeddings.side == "query"
    assert embeddings.part(2)[0] == [f"q{at}" for at in range(40, 47)]
    with pytest.raises(ConfigError, match=r"no queries/dev; it has queries/test"):
        encode_queries(make_config(), model, dataset, "dev", Folder(str(tmp_path / "dev")), **kwargs)


@pytest.mark.invariant
def test_killed_actor_changes_nothing(model: Folder, corpus: Folder, tmp_path: Path, undisturbed: Artifact) -> None:
    (Path(model.root) / "trouble").write_text("3")
    artifact = encode(model, corpus, tmp_path / "out", "KilledEncoder")
    assert not (Path(model.root) / "trouble").exists()
    assert artifact.manifest.parts == undisturbed.manifest.parts


@pytest.mark.invariant
def test_resumed_equals_uninterrupted_bit_for_bit(
    model: Folder, corpus: Folder, tmp_path: Path, undisturbed: Artifact
) -> None:
    (Path(model.root) / "trouble").write_text("3")
    output = tmp_path / "out"
    with pytest.raises(Exception, match="the encoder broke"):
        encode(model, corpus, output, "RaisingEncoder")
    finished = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.arrow")}
    assert 2 <= len(finished) < 5
    assert not (output / MANIFEST).exists()
    with pytest.raises(ArtifactError, match="not complete"):
        Embeddings.open(str(output))
    resumed = encode(model, corpus, output, "RaisingEncoder")
    assert finished.items() <= {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.arrow")}.items()
    assert resumed.manifest.parts == undisturbed.manifest.parts


@pytest.mark.invariant
def test_storage_that_ends_in_the_middle_of_a_part(
    model: Folder, corpus: Folder, tmp_path: Path, undisturbed: Artifact
) -> None:
    output = tmp_path / "out"
    (Path(model.root) / "trouble").write_text("3")
    with pytest.raises(ArtifactError, match=r"cannot write .*out/part-0000\d\.arrow: File too large\. .* are kept\.$"):
        encode(model, corpus, output, "CrampedEncoder")
    parts = sorted(path.name for path in output.glob("*part*"))
    assert all(name.startswith("part-") for name in parts), "half a file was left"
    assert 2 <= len(parts) < 5
    resumed = encode(model, corpus, output, "CrampedEncoder")
    assert resumed.manifest.parts == undisturbed.manifest.parts


def test_complete_embeddings_are_reused(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    first = encode(model, corpus, tmp_path / "out", "RaisingEncoder")
    (Path(model.root) / "trouble").write_text("1")
    again = encode(model, corpus, tmp_path / "out", "RaisingEncoder", max_actors=2, cpus_per_actor=0.5)
    assert again.manifest == first.manifest


def test_embeddings_of_two_models_are_never_mixed(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    encode(model, corpus, tmp_path / "out")
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(FingerprintError, match=r"inputs\.model"):
        encode(other, corpus, tmp_path / "out")


def test_a_vector_that_is_not_finite_is_named(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"part-0000\d\.arrow of .*'p\d*1' \(row 1\) is not finite") as raised:
        encode(model, corpus, tmp_path / "out", "NanEncoder")
    assert type(raised.value) is ModelError
    assert not list((tmp_path / "out").glob("part-*.arrow"))


def test_one_vector_a_text(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\d+ ids for \d+ vectors"):
        encode(model, corpus, tmp_path / "out", "LazyEncoder")


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


def test_what_cannot_fit_fails_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"not enough for encode\.min_actors 2 of 1 CPUs"):
        plan_actors(EncodeConfig(min_actors=2, max_actors=2))
    with pytest.raises(ConfigError, match=r"less than encode\.min_actors"):
        plan_actors(EncodeConfig(min_actors=2, max_actors=1))
    with pytest.raises(ConfigError, match=r"encode\.min_actors 4 of 0\.6 CPUs"):
        plan_actors(EncodeConfig(min_actors=4, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2))
    assert plan_actors(EncodeConfig(min_actors=3, max_actors=8, cpus_per_actor=0.6, cpus_per_tokenizer=0.2)) == (3, 8)


def test_an_interrupted_part_is_made_again(model: Folder, corpus: Folder, tmp_path: Path) -> None:
    """A part whose file was cut off after it was recorded is noticed by its checksum."""
    (Path(model.root) / "trouble").write_text("3")
    with pytest.raises(Exception, match="the encoder broke"):
        encode(model, corpus, tmp_path / "out", "RaisingEncoder")
    victim = next((tmp_path / "out").glob("part-*.arrow"))
    victim.write_bytes(victim.read_bytes()[:-8])
    encode(model, corpus, tmp_path / "out", "RaisingEncoder").verify()


def test_errors_of_raydr_come_back_as_themselves() -> None:
    import ray

    from raydr.stages.failures import worker_errors

    def fail() -> None:
        raise ModelError("as raised")

    with pytest.raises(RaydrError) as raised, worker_errors():
        ray.get(ray.remote(num_cpus=0.1)(fail).remote())
    assert type(raised.value) is ModelError
    assert str(raised.value) == "as raised"
