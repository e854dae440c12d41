"""What a file system allows as a name is one for a working folder, data, models and configs; nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.pipeline.garbage import find_garbage
from raydr.store.folder import Folder
from raydr.verbs.app import app

#: All that means something in a URL, a pattern, a shell or YAML.
ODD = "a?b=c%20d#e::f g;&@h*[1]{x}'\"ü"


def test_odd_names_of_folders_lead_to_the_same_run(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    odd = tmp_path / ODD
    data = shutil.copytree(beir_folder, odd / "data")
    model = shutil.copytree(tiny_checkpoint, odd / "model")
    keys = []
    for place, checkpoint, folder in ((odd, str(model), data), (tmp_path / "plain", tiny_checkpoint, beir_folder)):
        raw = small_run(folder, checkpoint, place / "work", train={"num_epochs": 1})
        place.mkdir(exist_ok=True)
        (place / "run.yaml").write_text(yaml.safe_dump(raw))
        done = CliRunner().invoke(app, ["search", str(place / "run.yaml"), "--split", "test"])
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(app, ["gc", str(place / "run.yaml"), "--yes", "--min-age-minutes", "0"])
        assert done.exit_code == 0, done.output
        places = Places.of(str(place / "work"))
        assert find_garbage(places, 0) == []
        keys.append({name: places.pointer(name) for name in places.names()})
    assert keys[0] == keys[1]
    assert {path.name for path in tmp_path.iterdir()} == {ODD, "plain"}
    assert {path.name for path in odd.iterdir()} == {"data", "model", "work", "run.yaml"}


@pytest.mark.parametrize("url", ["/a::b/c", "a::b", "~/a::b", "./s3://x::y"])
def test_a_double_colon_in_a_path_chains_nothing(url: str) -> None:
    folder = Folder(url)
    assert folder.is_local
    assert folder.root.endswith(url.lstrip("~."))
    assert not Folder("simplecache::memory://x").is_local


@pytest.mark.parametrize("letter", ["\0", "\ud800", "\n", "\x1b", "\x7f"])
@pytest.mark.parametrize(
    "key", ["workdir", "name", "data.reader.path", "model.checkpoint", "tracking.experiment", "ranker.model.checkpoint"]
)
def test_names_that_no_file_system_or_terminal_takes_are_refused(tmp_path: Path, key: str, letter: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: {reader: {name: beir, path: x}}\n")
    escaped = letter.encode("unicode_escape").decode().replace("\\x00", "\\0")
    with pytest.raises(ConfigError, match=rf"^{key} is .* cannot be in a name; leave it out$") as refused:
        RunConfig.load(file, [f'{key}="a{escaped}b"'])
    assert str(refused.value).isprintable()


def test_texts_have_line_breaks_and_no_half_letters(tmp_path: Path) -> None:
    raw = {"data": {"reader": {"name": "beir", "path": "x"}}, "model": {"query": {"prefix": "Instruct: find\nQuery: "}}}
    assert "\n" in RunConfig.parse(raw).model.query.prefix
    with pytest.raises(ConfigError, match=r"model\.query\.prefix is .* cannot be in a setting"):
        RunConfig.parse(raw | {"model": {"query": {"prefix": "a\ud800"}}})
    with pytest.raises(ConfigError, match=r"the config file is 'a.x00b'"):
        RunConfig.load("a\0b")


@pytest.mark.parametrize("key", ["workdir", "data.reader.path", "model.checkpoint"])
@pytest.mark.parametrize("name", ["x" * 256, "\u00fc" * 128, "abc/" * 2000])
def test_names_that_are_too_long_are_refused(tmp_path: Path, key: str, name: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: {reader: {name: beir, path: x}}\n")
    with pytest.raises(ConfigError, match=rf"^{key} is '.*'\.\.\., of \d+ bytes; a path has 4096 at most"):
        RunConfig.load(file, [f"{key}={name}"])
    done = CliRunner().invoke(app, ["prepare", f"{name}.yaml"])
    assert (done.exit_code, done.output.count("the config file is")) == (2, 1), done.output
