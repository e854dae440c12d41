"""What the experiments' commands accept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from experiments.arguments import command, load_config, numbers, run_parser


@pytest.mark.parametrize("text", ["half", "0,1.5", "", "0.1;0.2"])
def test_a_list_of_numbers_is_checked(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no list of numbers from 0 to 1"):
        numbers(float, 0, 1)(text)


def test_a_wrong_config_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = run_parser("What it does.", "results", seeds=2)
    with pytest.raises(SystemExit, match="2"):
        command(lambda: Path(load_config(parser, parser.parse_args([str(tmp_path / "none.yaml")]))[1]).touch())
    assert "there is no config file" in capsys.readouterr().err
    file = tmp_path / "run.yaml"
    file.write_text(f"workdir: {tmp_path}/work\ndata: {{reader: {{name: beir, path: x}}}}\n")
    arguments = parser.parse_args([str(file), "--set", "train.num_epochs=5"])
    config, out = load_config(parser, arguments)
    assert (config.train.num_epochs, arguments.seeds, out) == (5, 2, tmp_path / "work" / "results")
    assert out.is_dir()
