"""The command line: help, errors, exit codes."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import raydr
from raydr import console
from raydr.errors import ConfigError, RaydrError
from raydr.verbs import VERBS, function_name
from raydr.verbs.app import app
from raydr.verbs.exit_status import exit_status

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


def test_verbs_of_data_and_retrieval_do_not_wait_for_pytorch():
    """Where nothing is to be made, or no model is read, PyTorch would take most of the time."""
    code = "import sys, raydr.verbs.data, raydr.verbs.evaluation, raydr.verbs.retrieval, raydr.verbs.training; "
    code += "print([m for m in ('torch', 'ray', 'transformers', 'mlflow', 'faiss') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_a_function(verb):
    result = CliRunner().invoke(app, [*verb.split(), "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5
    assert callable(getattr(raydr, function_name(verb)))


def test_every_exported_name_exists_and_is_listed():
    for name in raydr.__all__:
        assert getattr(raydr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raydr.nothing


def test_verbs_are_in_the_readme():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for verb in ("quickstart", "prepare", "inspect", "mine", "train", "encode", "index", "search", "evaluate"):
        assert f"`{verb}`" in readme


def test_wrong_usage_ends_with_2_and_one_message(tmp_path):
    result = run("train", str(tmp_path / "none.yaml"))
    assert result.returncode == 2
    assert "error: there is no config file" in result.stderr
    assert "Traceback" not in result.stderr
    assert run("train").returncode == 2
    assert run("fly").returncode == 2


def test_details_are_told_with_v_and_a_verb_ends_with_what_comes_next(beir_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raydr.console._Verbosity.details", False)
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
    ("asked", "message"),
    [([], "run the same command to resume"), (["--again"], "to resume, without --again if no setting has changed")],
)
@pytest.mark.parametrize(
    ("sent", "status", "how"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_ctrl_c_and_sigterm_say_how_to_go_on(tmp_path, asked, message, sent, status, how):
    (tmp_path / "run.yaml").write_text("data: {reader: {name: beir, path: none}}\n")
    # In a process of its own: a command may leave by ending its process, and would end all tests of this one.
    code = (
        "import signal, raydr.verbs.training as verb\n"
        f"verb.open_session = lambda *_: signal.raise_signal({int(sent)})\n"
        "from raydr.verbs.app import main\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "train", str(tmp_path / "run.yaml"), *asked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stderr
    [line] = (result.stdout + result.stderr).splitlines()
    assert line.startswith(f"{how}: finished parts are kept; ")
    assert message in line


def test_sigterm_means_what_it_did_once_a_command_has_ended():
    before = signal.getsignal(signal.SIGTERM)
    with exit_status("command"):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_dir_shows_the_verbs():
    assert {function_name(verb) for verb in VERBS} | {"RunConfig", "search_text"} <= set(dir(raydr))


_VERBS = {function_name(verb) for verb in VERBS} - {"benchmark_noise", "settings", "submit"}


@pytest.mark.parametrize("verb", sorted({"search_text"} | _VERBS))
def test_every_verb_of_python_takes_a_config_in_any_form_or_says_what_it_takes(verb, tmp_path):
    function = getattr(raydr, verb)
    for wrong, message in [
        (tmp_path / "none.yaml", "there is no config file"),
        (str(tmp_path / "none.yaml"), "there is no config file"),
        ({"data": {"reader": {"name": "beir", "path": "x"}}, "sed": 1}, "sed"),
        (3, "(config|pairs) is a int; expected a (RunConfig, the path of a YAML file|list of)"),
    ]:
        with pytest.raises(RaydrError, match=message):
            # What else a verb must be given comes after the config.
            function(wrong, *["x"] * _num_needed(function))


def _num_needed(function):
    [_, *others] = inspect.signature(function).parameters.values()
    needed = (
        parameter for parameter in others if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    return sum(parameter.default is inspect.Parameter.empty for parameter in needed)


def test_a_config_is_the_same_in_every_form(tmp_path, monkeypatch):
    raw = {"data": {"reader": {"name": "beir", "path": "x"}}, "seed": 5}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.setattr("raydr.verbs.training.open_session", lambda config, *_: nullcontext(_Asked(config)))
    config = raydr.RunConfig.parse(raw)
    for form in (config, raw, tmp_path / "run.yaml", str(tmp_path / "run.yaml")):
        assert raydr.verbs.training.train(form) == config


class _Asked:
    """A session that hands back its config."""

    def __init__(self, config):
        self.config = config
        self.recipe = self

    def trained(self, *_):
        return self.config

    def make(self, config):
        return config


def test_submit_sends_a_file_and_says_so():
    with pytest.raises(ConfigError, match="submit needs a file, but the config is a dict"):
        raydr.submit({}, "train")
