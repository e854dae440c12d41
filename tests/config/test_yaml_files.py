"""YAML that is refused: with the file, the line and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydr.config.files import read_mapping
from raydr.config.run import RunConfig
from raydr.errors import ConfigError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nname: a\nseed: 2\n", r"the key 'seed' is there twice, first in line 1\n.*line 3, column 1"),
        ("train:\n  loss: nce\n  loss: rcl\n", r"the key 'loss' is there twice, first in line 2"),
        ("a: &a {b: *a}\n", r"it contains itself"),
        ("&a [*a]\n", r"it contains itself"),
        (BOMB, r"with its anchors written out it holds more than 100,000 values"),
        ("a: " + "[" * 3000 + "]" * 3000, r"it is nested too deeply"),
        ("seed: " + "9" * 5000, r"a value is none of its kind"),
        ("a: 2020-13-45", r"a value is none of its kind \(month must be in 1\.\.12"),
        ("a: !!bool x", r"a value is none of its kind"),
        ("a: !!timestamp x", r"a value is none of its kind"),
        ("seed: 010", r"YAML reads 010 as 8: write 8, or '010' in quotes\n.*line 1, column 7"),
        ("a: [12:30:45]", r"YAML reads 12:30:45 as 45045"),
        ("a: {b: 1:30.5}", r"YAML reads 1:30\.5 as 90\.5"),
    ],
)
def test_what_yaml_itself_would_take_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s)run\.yaml is not valid YAML: .*{message}"):
        read_mapping(file, "config file", "of sections")


def test_anchors_that_are_no_bomb_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("a: &side {max_length: 32}\nb: *side\nc: {<<: *side, prefix: x}\n")
    read = read_mapping(file, "config file", "of sections")
    assert read == {"a": {"max_length": 32}, "b": {"max_length": 32}, "c": {"max_length": 32, "prefix": "x"}}


def test_a_folder_and_another_encoding_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is a folder; expected the YAML file of a run: raydr prepare .* writes this file"
    ):
        RunConfig.load(tmp_path)
    (tmp_path / "run.yaml").write_bytes("name: é\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.yaml is not valid UTF-8 at byte 6: save the config file as UTF-8"):
        RunConfig.load(tmp_path / "run.yaml")


@pytest.mark.parametrize("name", ["my.csv", "my.jsonl.gz", "MY.TSV"])
def test_data_in_place_of_a_config_are_told_how_to_get_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"there is no file .*{name}$"):
        RunConfig.load(tmp_path / name)
    (tmp_path / name).write_text("query,positive\n")
    with pytest.raises(ConfigError, match=rf"{name} is data; .*: raydr prepare .*{name} reads the data"):
        RunConfig.load(tmp_path / name)


def test_a_file_that_is_not_there_is_looked_for_beside(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").touch()
    (tmp_path / "pairs.csv").touch()
    for wrong, right in (("rum.yaml", "run.yaml"), ("pair.csv", "pairs.csv")):
        with pytest.raises(ConfigError, match=rf"there is no .*{wrong}: did you mean .*{right}\?"):
            RunConfig.load(tmp_path / wrong)


def test_an_override_names_each_key_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: {reader: {name: beir, path: somewhere}}\n")
    with pytest.raises(ConfigError, match=r"--set train=.*the key 'loss' is there twice"):
        RunConfig.load(file, ["train={loss: nce, loss: rcl}"])


def test_numbers_and_texts_that_look_alike_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("a: '010'\nb: [0, -1, 1_000, 0x10, 0.5, 1e-3]\nc: '12:30'\nd: s3://a:b\n")
    assert read_mapping(file, "config file", "of sections") == {
        "a": "010", "b": [0, -1, 1000, 16, 0.5, "1e-3"], "c": "12:30", "d": "s3://a:b"
    }  # fmt: skip
