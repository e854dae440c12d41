"""The job scripts and the full-scale recipes: every file is run with ``--dry-run``."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.evaluation.metrics import parse_measures

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs"
STAGES = ("prepare", "train", "encode", "index", "evaluate", "refresh", "tune")
RECIPES = sorted(path for path in (JOBS / "recipes").glob("*.yaml") if path.name != "published.yaml")
REFRESHED = re.compile(r".*-(hard|fn-classifier|hard-nce|sieve|ar2)|zeshel-(?!joint).*|aida-.*")


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script in this process; returns its exit status and what it printed."""

    def run(name: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.syspath_prepend(str(JOBS))
        monkeypatch.setattr(sys, "argv", [f"jobs/{name}.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        printed = capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return status, printed.out + printed.err

    return run


def files_of(config: RunConfig) -> list[str]:
    """What prepare reads."""
    reader = config.data.reader.model_dump()
    if reader["name"] == "dpr":
        return [reader["passages"], *reader["biencoder"].values(), *reader["retriever"].values()]
    if reader["name"] == "msmarco":
        return [
            "collection.tsv",
            *(f"{kind}.{split}.tsv" for kind in ("queries", "qrels") for split in reader["splits"]),
        ]
    if reader["name"] == "zeshel":
        return ["documents/WORLD.json", *(f"mentions/{split}.json" for split in reader["splits"])]
    if reader["name"] == "kilt":
        return [*reader["pages"], *reader["tasks"].values()]
    return ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in reader["splits"])]


def is_refreshed(recipe: Path) -> bool:
    return REFRESHED.fullmatch(recipe.stem) is not None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_names_the_data_it_lacks(recipe: Path, run_script: Any, tmp_path: Path) -> None:
    job = "refresh" if is_refreshed(recipe) else "prepare"
    overrides = ["--set", f"data.reader.path={tmp_path}/none", "--set", f"workdir={tmp_path}/run"]
    status, printed = run_script(job, "--config", str(recipe), "--dry-run", *overrides)
    assert status == 1, printed
    assert f"{recipe}: the settings are valid" in printed
    config = RunConfig.load(recipe)
    for file in files_of(config):
        assert f"{tmp_path}/none/{file} is missing" in printed
    assert "Traceback" not in printed
    parse_measures(config.evaluate.measures)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_lies_where_every_machine_sees_it(recipe: Path) -> None:
    config = RunConfig.load(recipe)
    assert config.name == recipe.stem
    assert config.workdir == f"/mnt/raydr/runs/{recipe.stem}"
    assert str(config.data.reader.model_dump()["path"]).startswith("/mnt/raydr/data/")
    assert config.train.use_gpu
    assert (config.refresh.num_rounds != 3) == is_refreshed(recipe)
    assert recipe.read_text().splitlines()[-1].startswith("tracking:")


def test_recipes_of_one_data_set_differ_in_the_method_alone() -> None:
    """What is compared is read, encoded, indexed and evaluated alike."""
    for data_set in ("nq", "tq", "msmarco", "staqc", "so-ds", "zeshel"):
        configs = [RunConfig.load(path) for path in RECIPES if path.stem.startswith(f"{data_set}-")]
        assert len(configs) >= 3
        for section in ("data", "encode", "index", "evaluate"):
            assert len({repr(getattr(config, section)) for config in configs}) == 1, (data_set, section)


def config_of(stage: str) -> Path:
    """What a script's docstring submits it with: the one run, or a config of its own."""
    own = JOBS / f"{stage}.yaml"
    return own if own.exists() else JOBS / "run.yaml"


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_script_and_a_config(stage: str, run_script: Any, tmp_path: Path) -> None:
    space = ["--space", str(ROOT / "tune_spaces" / "npc.yaml")] if stage == "tune" else []
    arguments = ["--config", str(config_of(stage)), "--dry-run", "--set", f"workdir={tmp_path}", *space]
    status, printed = run_script(stage, *arguments)
    # What a stage before it would have made, it makes itself.
    assert (status, "nothing is missing" in printed) == (0, True), printed
    script = (JOBS / f"{stage}.py").read_text()
    assert f"ray job submit --working-dir . -- python jobs/{stage}.py --config jobs/{config_of(stage).name}" in script


def test_wrong_settings_and_wrong_usage_end_with_2(run_script: Any) -> None:
    config = str(JOBS / "run.yaml")
    status, printed = run_script("train", "--config", config, "--dry-run", "--set", "train.num_epoch=3")
    assert status == 2
    assert "train.num_epoch: unknown key (value 3)" in printed
    assert run_script("train", "--config", config, "--fly")[0] == 2
    assert run_script("train", "--config", "none.yaml")[0] == 2


def test_a_dry_run_looks_at_the_space_that_it_was_given(run_script: Any, tmp_path: Path) -> None:
    dry = ["--dry-run", "--set", f"workdir={tmp_path}"]
    space = ["--space", str(ROOT / "tune_spaces" / "npc.yaml"), "--set-space", "search.num_trial=3"]
    status, printed = run_script("tune", "--config", str(JOBS / "tune.yaml"), *dry, *space)
    assert (status, "num_trial" in printed) == (2, True)


def test_a_job_makes_what_it_lacks_and_is_done_when_it_is_there(
    run_script: Any, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = small_run(beir_folder, tiny_checkpoint, tmp_path / "w", train={"num_epochs": 1})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    arguments = ["--config", str(tmp_path / "run.yaml")]
    status, printed = run_script("evaluate", *arguments, "--system", "bm25", "--system", "trained")
    assert status == 0, printed
    for job in ("prepare", "train", "encode", "index"):
        status, printed = run_script(job, *arguments)
        assert (status, "nothing to make" in printed) == (0, True), printed
    # Another setting stops, and --again goes on.
    status, printed = run_script("train", *arguments, "--set", "train.num_epochs=2")
    assert (status, "train.num_epochs was 1, is 2" in printed) == (1, True)
    assert run_script("train", *arguments, "--set", "train.num_epochs=2", "--again")[0] == 0


def test_the_exit_status_of_the_process_is_that_of_the_job(tmp_path: Path) -> None:
    """A job that fails ends its process with 1, and the message is the last line."""
    command = [sys.executable, "jobs/encode.py", "--config", "jobs/run.yaml"]
    overrides = ["workdir=gs://bucket/none", "tracking.enabled=false"]
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("error: gs://bucket/none")
