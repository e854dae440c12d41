"""What is sent with a job: the command, the files, the variables."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

import raydr
from raydr.errors import ConfigError
from raydr.ops.submit.request import EXCLUDES, Sent, build_request, check_required_variables

CONFIG = 'name: nq\nworkdir: s3://bucket/nq\ndata: {reader: {name: beir, path: /data/nq}}\ntracking: {uri: "http://mlflow:5000"}\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "nq.yaml").write_text(CONFIG)
    return tmp_path


def request(project: Path, verb: str = "train", sent: Sent | None = None, **options: object):  # type: ignore[no-untyped-def]
    sent = sent or Sent(working_dir=str(project))
    return build_request(str(project / "configs" / "nq.yaml"), verb, sent=sent, **options)  # type: ignore[arg-type]


def test_the_command_says_where_the_config_is_on_the_cluster(project: Path) -> None:
    made = request(project, arguments=["--name", "a b"], overrides=["train.num_epochs=3", "workdir='s3://b/x y'"])
    assert shlex.split(made.entrypoint) == [
        *("python", "-m", "raydr", "train", "configs/nq.yaml", "--name", "a b"),
        *("--set", "train.num_epochs=3", "--set", "workdir='s3://b/x y'"),
    ]
    assert made.submission_id.startswith("nq-train-")


def test_data_and_results_stay_here_and_the_package_raydr_data_does_not(tmp_path: Path) -> None:
    for name in ("data/x.tsv", "work/run/m.bin", "raydr/data/reader.py", ".venv/lib/a.py", ".git/config", "run.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    package = tmp_path.parent / "package.zip"
    create_package(str(tmp_path), package, include_gitignore=True, excludes=list(EXCLUDES))
    assert sorted(zipfile.ZipFile(package).namelist()) == ["raydr/data/reader.py", "run.yaml"]


def test_results_and_data_of_the_run_stay_here_wherever_they_lie(project: Path) -> None:
    """On a folder that all machines see, the working directory often holds them; Ray refuses more than 500 MB."""
    places = [f"workdir={project}/runs/nq", f"data.reader.path={project}/beir"]
    for name in ("runs/nq/store/m.bin", "runs/other.yaml", "beir/corpus.jsonl"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    excludes = request(project, overrides=places).runtime_env["excludes"]
    package = project.parent / f"{project.name}.zip"
    create_package(str(project), package, include_gitignore=True, excludes=excludes)
    assert sorted(zipfile.ZipFile(package).namelist()) == ["configs/nq.yaml", "runs/other.yaml"]
    # The folder of the data may be that of the config.
    for folder in (project, project / "configs"):
        made = request(project, overrides=[f"data.reader.path={folder}"])
        assert made.runtime_env["excludes"] == list(EXCLUDES)


def test_raydr_itself_goes_along_unless_the_folder_has_it(project: Path) -> None:
    assert request(project).runtime_env["py_modules"] == [str(Path(raydr.__file__).parent)]
    (project / "raydr").mkdir()
    (project / "raydr" / "__init__.py").touch()
    assert "py_modules" not in request(project).runtime_env


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("workdir=work/nq", "workdir 'work/nq'"),
        ("data.reader.path=../data", "data.reader.path '../data'"),
        ("tracking.uri=mlruns", "tracking.uri 'mlruns'"),
        ("tracking.uri=sqlite:///mlflow.db", "tracking.uri 'mlflow.db'"),
        ("model.checkpoint=./bert", "model.checkpoint './bert'"),
        ("judge.guide.checkpoint=./guide", "judge.guide.checkpoint './guide'"),
        ("cross_fit.model={checkpoint: ./folds}", "cross_fit.model.checkpoint './folds'"),
        ('data.reader={"name": "pairs", "files": {"train": ["a.jsonl"]}}', "data.reader.files.train 'a.jsonl'"),
        ('data.reader={"name": "huggingface", "path": "./saved"}', "data.reader.path './saved'"),
    ],
)
def test_relative_places_are_refused(project: Path, override: str, named: str) -> None:
    with pytest.raises(ConfigError, match="is deleted with the cluster") as refused:
        request(project, overrides=[override])
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("workdir=work", "or a URL: --set workdir=s3://BUCKET/..."),
        # MLflow has no store in a bucket.
        ("tracking.uri=mlruns", "or a URL: --set tracking.uri=http://mlflow:5000"),
        ("model.checkpoint=./bert", "or a name on the hub, or a URL: --set model.checkpoint=s3://BUCKET/..."),
    ],
)
def test_the_remedy_for_a_relative_place_works(project: Path, override: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        request(project, overrides=[override])
    assert str(refused.value).endswith(remedy)


def test_a_bucket_needs_a_server_that_tracks(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri is empty, and .* s3://bucket/nq cannot hold a SQLite file"):
        request(project, overrides=["tracking.uri=''"])
    request(project, overrides=["tracking.uri=''", "tracking.enabled=false"])
    request(project, overrides=["tracking.uri=sqlite:////mnt/mlflow.db"])


def test_hub_names_are_no_relative_places(project: Path) -> None:
    made = request(project, overrides=["model.checkpoint=google-bert/bert-base-uncased"])
    assert "bert-base-uncased" in made.entrypoint
    made = request(project, overrides=['data.reader={"name": "huggingface", "path": "org/questions"}'])
    assert "org/questions" in made.entrypoint


def test_a_config_that_would_not_be_sent_is_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match="is not in the working directory"):
        request(project, sent=Sent(working_dir=sys.prefix))
    (project / "work").mkdir()
    (project / "work" / "config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match="a folder that is not sent"):
        build_request(str(project / "work" / "config.yaml"), "train", sent=Sent(working_dir=str(project)))
    with pytest.raises(ConfigError, match="there is no folder"):
        request(project, sent=Sent(working_dir=str(project / "none")))


def test_secrets_are_refused_and_names_are_passed_on(project: Path) -> None:
    for env in ({"HF_TOKEN": "hush"}, {"MLFLOW_TRACKING_URI": "http://me:hush@host"}):
        with pytest.raises(ConfigError, match="looks like a secret") as refused:
            request(project, sent=Sent(working_dir=str(project), env=env))
        assert "hush" not in str(refused.value)
    with pytest.raises(ConfigError, match="an argument of train is a URL that holds credentials"):
        request(project, arguments=["--negatives", "s3://key:hush@bucket/x"])
    for url in ("https://me:hush@mlflow.org", "http://hush@mlflow.org", "http://mlflow.org/#token=hush"):
        for asked in (
            {"arguments": ["--set", f"tracking.uri={url}"]},
            {"overrides": [f"tracking.uri={url}"]},
            {"submission_id": url},
            {"sent": Sent(working_dir=str(project), python=url)},
            {"sent": Sent(working_dir=str(project), env={"MLFLOW_TRACKING_URI": url})},
        ):
            with pytest.raises(ConfigError, match=r"holds credentials|looks like a secret") as refused:
                request(project, **asked)
            assert "hush" not in str(refused.value)
    made = request(
        project, sent=Sent(working_dir=str(project), env={"OMP_NUM_THREADS": "2"}, require_env=["HF_TOKEN", "A"])
    )
    assert made.runtime_env["env_vars"] == {
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "140",
        "OMP_NUM_THREADS": "2",
        "RAYDR_REQUIRED_ENV": "HF_TOKEN,A",
    }


@pytest.mark.parametrize("submission_id", ["my job", "a/b", "a?b"])
def test_a_name_that_is_no_part_of_a_url_is_refused(project: Path, submission_id: str) -> None:
    """Ray would run the job a?b, and answer questions on the job a."""
    with pytest.raises(ConfigError, match="--submission-id .* is no name"):
        request(project, submission_id=submission_id)


def test_a_runtime_environment_is_taken_over(project: Path) -> None:
    file = project / "env.yaml"
    file.write_text("pip: [regex]\nexcludes: ['*.bin']\nenv_vars: {A: 1}\npy_modules: [s3://bucket/m.zip]\n")
    made = request(project, sent=Sent(working_dir=str(project), env={"A": "2"}, runtime_env=str(file)))
    assert made.runtime_env["pip"] == ["regex"]
    assert made.runtime_env["excludes"] == [*EXCLUDES, "*.bin"]
    assert made.runtime_env["env_vars"]["A"] == "2"
    assert made.runtime_env["py_modules"][0] == "s3://bucket/m.zip"
    file.write_text("env_vars: {DB_PASSWORD: hush}\n")
    with pytest.raises(ConfigError, match="DB_PASSWORD looks like a secret"):
        request(project, sent=Sent(working_dir=str(project), runtime_env=str(file)))
    file.write_text("pip: {packages: ['git+https://hush@github.com/org/repo.git']}\n")
    with pytest.raises(ConfigError, match="pip.packages of --runtime-env is a URL that holds credentials"):
        request(project, sent=Sent(working_dir=str(project), runtime_env=str(file)))
    file.write_text("working_dir: .\n")
    with pytest.raises(ConfigError, match="give it with --working-dir"):
        request(project, sent=Sent(working_dir=str(project), runtime_env=str(file)))


def test_the_job_ends_if_a_variable_is_missing() -> None:
    check_required_variables({"RAYDR_REQUIRED_ENV": "A,B", "A": "1", "B": "2"})
    check_required_variables({})
    with pytest.raises(ConfigError, match="not set on this machine of the cluster: B"):
        check_required_variables({"RAYDR_REQUIRED_ENV": "A,B", "A": "1", "B": ""})
