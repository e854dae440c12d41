"""What comes with raydr is found by its name, from any folder and without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from raydr.config.files import CONFIGS, SPACES, located
from raydr.config.run import RunConfig
from raydr.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_a_file_that_is_there_comes_before_one_of_raydr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("npc", SPACES, "space file") == ROOT / "tune_spaces" / "npc.yaml"
    Path("npc").touch()
    assert located("npc", SPACES, "space file") == Path("npc")
    assert located("npc.yaml", SPACES, "space file") == Path("npc.yaml")


def test_a_folder_of_data_does_not_hide_a_config_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scifact").mkdir()
    assert located("scifact", CONFIGS, "config file") == ROOT / "configs" / "benchmarks" / "scifact.yaml"
    Path("mine").mkdir()
    with pytest.raises(ConfigError, match="mine is a folder"):
        RunConfig.load("mine")


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(ConfigError, match="no space file npd, .* with raydr come ccr, ccr-dot, joint, "):
        located("npd", SPACES, "space file")
    with pytest.raises(ConfigError, match="with raydr come so-codenn"):
        RunConfig.load("so-codeNN")


def test_no_two_configs_have_one_name():
    names = [file.stem for folder in CONFIGS for file in (ROOT / folder).glob("*.yaml")]
    assert len(names) == len(set(names)) > 40


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The wheel of this checkout, in a folder of its own."""
    made = tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    # setuptools builds in the current folder, which stays as it is.
    source = made / "source"
    source.mkdir()
    for name in ("raydr", "configs", "jobs", "tune_spaces", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, "-c", build, str(made)], cwd=source, check=True, capture_output=True)
    [wheel] = made.glob("raydr-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made / "site")
    return made / "site"


def raydr(unpacked: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "raydr", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(unpacked), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_what_is_found_by_name(unpacked):
    assert sorted(entry.name for entry in unpacked.iterdir() if entry.suffix != ".dist-info") == ["raydr"]
    shipped = {file.relative_to(unpacked / "raydr" / "shipped").as_posix() for file in unpacked.rglob("shipped/*/*")}
    assert shipped == {
        f"{Path(name).name}/{file.name}" for name in (*CONFIGS, *SPACES) for file in (ROOT / name).glob("*.yaml")
    }
    assert (unpacked / "raydr" / "py.typed").is_file()
    pages = {file.name for file in (ROOT / "raydr" / "pages" / "review").iterdir()}
    assert {file.name for file in (unpacked / "raydr" / "pages" / "review").iterdir()} == pages > {"index.html"}
    assert not list(unpacked.rglob("test_*"))


@pytest.mark.e2e
def test_without_a_checkout_configs_spaces_and_the_quickstart_are_found(unpacked, tmp_path, beir_folder):
    from_wheel = raydr(unpacked, tmp_path, "quickstart", "--dry-run", "--set", "data.reader.packages=[rich]")
    assert from_wheel.returncode == 0, from_wheel.stderr
    reader = ["--set", f"data.reader.path={beir_folder}"]
    prepared = raydr(unpacked, tmp_path, "prepare", "so-codenn", *reader, "--set", "data.test_splits=[test]")
    assert prepared.returncode == 0, prepared.stderr
    assert (tmp_path / "work" / "so-codenn" / "corpus" / "manifest.json").is_file()
    recipe = raydr(unpacked, tmp_path, "prepare", "nq-dpr")
    assert "/mnt/raydr/data/dpr" in recipe.stderr
    space = raydr(unpacked, tmp_path, "tune", "so-codenn", "--space", "npd", "--dry-run")
    assert "with raydr come ccr, ccr-dot, joint, negatives, npc," in space.stderr
