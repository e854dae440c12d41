"""Credentials never get into a config, whichever way it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydr.config.run import RunConfig
from raydr.config.secrets import holds_credentials, looks_secret, refuse_credentials
from raydr.errors import ConfigError
from raydr.tracking.tracker import TrackingConfig

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


@pytest.mark.parametrize(
    "url",
    [
        *("http://TOKEN@host", "https://TOKEN@host/path", "http://TOKEN:@host", "s3://AKIA@bucket/x", "HTTPS://T@h"),
        *("git+https://ghp_hush@github.com/org/repo.git", "http://host/#token=hush", "http://host#access_token=hush"),
        *("http://host/#/page?api_key=hush", "http://host/?a=1;password=hush", "https://host/?%74oken=hush"),
        *("http://TOKEN@[::1", "https://%54OKEN@host", "http://host:5000/?x=1&sig=hush", "see http://T@h, or not"),
        *("postgresql+psycopg2://me:hush@host/db", "--uri=http://T@h", "redis://:hush@host"),
    ],
)
def test_tokens_in_urls_are_credentials(url: str) -> None:
    assert holds_credentials(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://mlflow:5000", "s3://bucket/a@b", "s3://bucket/key=5/x", "gs://x?generation=3", "user@host", "a: b@c"),
        *("abfs://container@account.dfs.core.windows.net/x", "git+ssh://git@github.com/org/repo.git", "sqlite:////a@b"),
        *("postgresql://me@host/db", "http://host/#/experiments/1?tab=metrics", "http://host/?token=", "hdfs://me@n/x"),
    ],
)
def test_other_urls_are_none(url: str) -> None:
    assert not holds_credentials(url)


def test_names_of_places_are_no_secrets() -> None:
    assert not looks_secret("GOOGLE_APPLICATION_CREDENTIALS")
    assert looks_secret("MLFLOW_TRACKING_PASSWORD")
    assert looks_secret("my_api_key")
