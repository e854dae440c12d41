"""The command line: help, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import raydr
from raydr.runtime import console
from raydr.verbs import VERBS, app

HEAVY = ("torch", "ray", "transformers", "mlflow", "faiss", "pyarrow", "pandas", "sklearn")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raydr", *arguments], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy():
    code = f"import sys, raydr.verbs; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_reading_a_config_does_not_wait_for_pytorch():
    heavy = tuple(name for name in HEAVY if name != "pyarrow")
    file = Path(raydr.__file__).parent / "verbs" / "quickstart.yaml"
    code = (
        f"import sys; from raydr.config.run import RunConfig; RunConfig.load({str(file)!r}); "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_a_function(verb):
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5
    assert callable(getattr(raydr, verb.replace("-", "_")))


def test_every_exported_name_exists_and_is_listed():
    for name in raydr.__all__:
        assert getattr(raydr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raydr.nothing


def test_verbs_are_in_the_readme():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for verb in ("quickstart", "prepare", "inspect", "mine", "train", "encode", "index", "search", "evaluate"):
        assert f"raydr {verb}" in readme


def test_wrong_usage_ends_with_2_and_one_message(tmp_path):
    result = run("train", str(tmp_path / "none.yaml"))
    assert result.returncode == 2
    assert "error: there is no config file" in result.stderr
    assert "Traceback" not in result.stderr
    assert run("train").returncode == 2
    assert run("fly").returncode == 2


def test_details_are_told_with_v_and_a_verb_ends_with_what_comes_next(beir_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raydr.runtime.console._Verbosity.details", False)
    (tmp_path / "my run.yaml").write_text(f"data: {{reader: {{name: beir, path: {beir_folder}}}}}\n")
    options = ["--set", "seed=3", "--set", "tracking.enabled=false"]
    result = CliRunner().invoke(app, ["prepare", "my run.yaml", "-v", *options])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].endswith(" inspect 'my run.yaml' --set seed=3 --set tracking.enabled=false")
    assert console._Verbosity.details
    result = CliRunner().invoke(app, ["prepare", "my run.yaml", "--dry-run", *options])
    assert "next:" not in result.output


def test_the_version_is_shown():
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"raydr {raydr.__version__}")


@pytest.mark.parametrize(
    ("asked", "said"), [([], "the same command goes on"), (["--again"], "without --again goes on")]
)
def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, asked, said):
    (tmp_path / "run.yaml").write_text("data: {reader: {name: beir, path: none}}\n")

    def interrupted(*settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raydr.verbs.train.open_session", interrupted)
    monkeypatch.setattr(sys, "argv", ["raydr", *asked])
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), *asked])
    assert result.exit_code == 130
    assert said in result.output


def test_dir_shows_the_verbs():
    assert {verb.replace("-", "_") for verb in VERBS} | {"RunConfig", "search_text"} <= set(dir(raydr))
