"""Credentials never get into a config, whichever way it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.runtime.secrets import looks_secret, refuse_credentials
from raydr.runtime.tracking_config import TrackingConfig

READER = {"reader": {"name": "beir", "path": "x"}}
URL = "https://me:hush-hush@mlflow.example.org"


@pytest.mark.parametrize("path", ["file", "override", "object"])
def test_a_config_with_a_password_is_refused_and_the_password_not_shown(tmp_path: Path, path: str) -> None:
    file = tmp_path / "run.yaml"
    uri = URL if path == "file" else "http://mlflow:5000"
    file.write_text(f"data: {{reader: {{name: beir, path: x}}}}\ntracking: {{uri: '{uri}'}}\n")
    with pytest.raises(ConfigError, match=r"tracking\.uri is a URL that holds credentials") as refused:
        if path == "object":
            RunConfig.model_validate({"data": READER, "tracking": TrackingConfig(uri=URL)})
        else:
            RunConfig.load(file, [f"tracking.uri={URL}"] if path == "override" else [])
    assert "hush-hush" not in str(refused.value)


def test_lists_and_inner_sections_are_looked_into() -> None:
    with pytest.raises(ConfigError, match=r"^a\.b "):
        refuse_credentials({"a": {"b": ["fine", "s3://bucket?X-Amz-Signature=ff"]}})
    with pytest.raises(ConfigError, match=r"^judge\.judges\.endpoint "):
        refuse_credentials({"judge": {"judges": ["npc", {"endpoint": "https://me:hush@host/v1"}]}})
    refuse_credentials({"a": {"b": ["s3://bucket/a@b", "user:password", "gs://x?generation=3"]}, "c": 3})


def test_names_of_places_are_no_secrets() -> None:
    assert not looks_secret("GOOGLE_APPLICATION_CREDENTIALS")
    assert looks_secret("MLFLOW_TRACKING_PASSWORD")
    assert looks_secret("my_api_key")
