"""Names, and what ``--again``, ``--dry-run`` and ``gc`` do with what they point to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.graph.places import Places
from raydr.graph.session import open_session
from raydr.store.folder import ASIDE
from raydr.verbs import app


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(num_epochs: int = 1, **sections: Any) -> RunConfig:
        train = {"num_epochs": num_epochs, "num_hard_negatives": 0, "batch_size": 20}
        settings: dict[str, Any] = {"negatives": None, "train": train, "inject_noise": {"share": 0.25}} | sections
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))

    return parse


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", ".hidden", "a b", "-x", "/evil"])
def test_what_a_user_names_stays_in_its_folder(configure: Any, tmp_path: Path, name: str) -> None:
    config = configure()
    with pytest.raises(ConfigError, match=r"is no name: expected letters, digits"):
        raydr.train(config, name=name)
    with pytest.raises((ConfigError, ArtifactError), match=r"is no name|there is no model called"):
        raydr.encode(config, model=name)
    with pytest.raises(ConfigError, match=r"is no name"):
        raydr.tune(config, {"space": {"train.num_epochs": {"choice": [1, 2]}}}, name=name or "..")
    assert not {path.name for path in tmp_path.rglob("*") if path.is_dir()} - {"w", "facts"}


@pytest.mark.parametrize("name", ["bm25", "untrained", "source"])
def test_a_model_is_not_called_as_what_is_no_training(configure: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--name {name}: raydr calls something else so"):
        raydr.train(configure(), name=name)


def test_a_name_moves_only_when_asked_and_the_old_artefact_stays(configure: Any, capsys: Any) -> None:
    one, five = configure(1), configure(5)
    places = Places.of(one.workdir)
    [first] = raydr.train(one)
    with pytest.raises(FingerprintError, match=r"models/trained: train\.num_epochs was 1, is 5\n.*--again"):
        raydr.train(five)
    # A later stage does not train by accident either.
    with pytest.raises(FingerprintError, match=r"models/trained: train\.num_epochs was 1, is 5"):
        raydr.encode(five)
    [other] = raydr.train(five, name="five")
    assert places.open("models/five", "model").fingerprint == other.fingerprint != first.fingerprint
    assert places.open("models/trained", "model").fingerprint == first.fingerprint
    capsys.readouterr()
    raydr.train(five, again=True)
    # It was there under its key: only the name moves.
    assert "nothing to make" in capsys.readouterr().err
    assert places.open("models/trained", "model").fingerprint == other.fingerprint
    assert first.folder.exists("manifest.json")
    assert Path(one.workdir, "models", "trained").resolve() == Path(other.folder.root)


def test_again_with_the_same_settings_sets_the_old_one_aside_and_gc_removes_it(configure: Any, capsys: Any) -> None:
    config = configure()
    [before] = raydr.train(config)
    data = Places.of(config.workdir).open("dataset-noisy", "dataset").manifest.created
    capsys.readouterr()
    [after] = raydr.train(config, again=True)
    said = capsys.readouterr().err
    assert "train-trained: asked for again" in said
    # Only what was asked for is made again.
    assert "1 artefact to make" in said
    assert Places.of(config.workdir).open("dataset-noisy", "dataset").manifest.created == data
    assert (after.fingerprint, after.folder.root) == (before.fingerprint, before.folder.root)
    raydr.train(configure(2), again=True)

    found = raydr.gc(config)
    assert {(one.kind, one.why) for one in found} == {
        ("model", "was set aside when it was made anew"),
        ("model", "no name reaches it"),
    }
    assert sum(ASIDE in one.folder.root for one in found) == 1
    assert all(one.folder.exists() and one.num_bytes > 10_000 for one in found)
    raydr.gc(config, yes=True)
    assert not any(one.folder.exists() for one in found)
    assert raydr.gc(config) == []
    # What names reach is whole.
    for name in Places.of(config.workdir).names():
        pointer = Places.of(config.workdir).pointer(name)
        assert pointer is not None
        Places.of(config.workdir).open(name, pointer.kind).verify()


VERBS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "prepare": {},
    "inject_noise": {},
    "mine": {},
    "judge": {"judge": ["margin", "consistency"]},
    "train": {},
    "encode": {},
    "index": {},
    "search": {},
    "rerank": {"by": "untrained"},
    "fuse": {},
    "import_run": {"file": "FILE", "system": "lucene"},
    "import_vectors": {"file": "FILE", "ids": "FILE", "system": "other"},
    "evaluate": {},
    "refresh": {},
    "audit": {},
    "diagnose": {},
    "benchmark": {},
    "tune": {"space": {"space": {"model.scale": {"uniform": [5, 50]}}, "scheduler": {"name": "none"}}, "name": "mine"},
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_lists_what_would_be_made_and_makes_nothing(
    configure: Any, tmp_path: Path, capsys: Any, verb: str
) -> None:
    config = configure(train={"num_epochs": 1})
    (tmp_path / "a.trec").write_text("q50 Q0 p050 1 2.5 x\n")
    options = {name: str(tmp_path / "a.trec") if value == "FILE" else value for name, value in VERBS[verb].items()}
    assert not getattr(raydr, verb)(config, **options, dry_run=True)
    said = capsys.readouterr().err
    assert "to make:" in said
    assert ": new" in said
    # Facts are found out, and kept.
    assert {path.name for path in Path(config.workdir).glob("*")} <= {"facts"}


def test_every_verb_with_a_dry_run_is_looked_at() -> None:
    commands = CliRunner()
    having = {
        verb.name
        for verb in app.registered_commands
        if verb.name and "--dry-run" in commands.invoke(app, [verb.name, "--help"]).output
    }
    assert having == {verb.replace("_", "-") for verb in VERBS}


def test_what_is_there_needs_neither_ray_nor_pytorch(configure: Any, tmp_path: Path) -> None:
    config = configure()
    raydr.evaluate(config)
    tracked = config.model_copy(update={"tracking": config.tracking.model_copy(update={"enabled": True})})
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tracked.model_dump(mode="json")))
    code = (
        "import sys, raydr\n"
        f"config = raydr.RunConfig.load({str(file)!r})\n"
        "raydr.train(config); raydr.encode(config); raydr.search(config); raydr.evaluate(config)\n"
        "print([name for name in ('ray', 'mlflow', 'transformers', 'torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing to make") == 4
    assert done.stdout.strip() == "[]"


def test_a_working_folder_of_before_is_refused_and_left_alone(configure: Any, tmp_path: Path) -> None:
    config = configure()
    old = Path(config.workdir) / "corpus"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text("{}")
    for verb in (raydr.train, raydr.report, raydr.gc, raydr.refresh):
        with pytest.raises(ArtifactError, match=r"was made by an earlier raydr.* set another workdir"):
            verb(config)
    assert [path.name for path in Path(config.workdir).iterdir()] == ["corpus"]


def test_judged_data_leave_too(configure: Any, tmp_path: Path) -> None:
    config = configure()
    [clean] = raydr.judge(config, ["truth"])

    def num_judgments(name: str, **options: str) -> int:
        raydr.export(config, str(tmp_path / name), **options)
        return len((tmp_path / name / "qrels" / "train.tsv").read_text().splitlines()) - 1

    # A quarter of 40 pairs was made noisy.
    assert num_judgments("all") == 40
    assert num_judgments("clean", dataset=str(clean.folder)) == 30
    assert num_judgments("named", dataset="dataset-clean") == 30
    with pytest.raises(ArtifactError, match="no dataset called dataset-npc in .*; there is dataset, dataset-clean, "):
        raydr.export(config, str(tmp_path / "none"), dataset="dataset-npc")
    corpus = str(Places.of(config.workdir).open("corpus", "corpus").folder)
    with pytest.raises(ArtifactError, match=r"expected a dataset at .*, found a corpus"):
        raydr.export(config, str(tmp_path / "wrong"), dataset=corpus)


def test_the_stored_config_is_that_of_the_run_from_any_folder(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raydr.prepare(configure().model_copy(update={"workdir": "w"}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stored = RunConfig.load(tmp_path / "w" / "config.yaml")
    assert len(raydr.prepare(stored)) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_workers_find_from_any_folder_what_is_named_from_here(
    configure: Any, tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Path(tiny_checkpoint)
    monkeypatch.chdir(checkpoint.parent)
    with open_session(configure(model={"checkpoint": checkpoint.name})) as session:
        assert session.config.model.checkpoint == tiny_checkpoint
        named_here = session.recipe.model("untrained").key
    with open_session(configure()) as session:
        assert session.recipe.model("untrained").key == named_here


def test_one_more_system_is_evaluated_after_others_and_after_single_verbs(configure: Any, capsys: Any) -> None:
    config = configure(evaluate={"answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100})
    raydr.search(config, model="untrained")
    first = raydr.evaluate(config, ["untrained"]).to_pandas()
    raydr.train(config)
    both = raydr.evaluate(config, ["untrained", "trained"]).to_pandas()
    assert set(first.system) == {"untrained"}
    assert set(both.system) == {"untrained", "trained"}
    assert both[both.system == "untrained"].reset_index(drop=True).equals(first)
    # What is longer than a narrow terminal is a sentence, a reason, or a place of people's own.
    said = [line for line in capsys.readouterr().err.splitlines() if config.workdir not in line]
    broken = [line for line in said if len(line) > 80 and not line.startswith(("*: ", "  "))]
    assert not broken
