"""What is said of a store that does not answer, or not to us."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import fsspec
import pytest
from s3_server import served_bucket

from raydr.artefacts.places import Places
from raydr.data.inputs import find_input
from raydr.errors import ArtifactError, DamagedError
from raydr.store.filesystems import require_reachable
from raydr.store.folder import Folder


@pytest.fixture
def bucket():
    with served_bucket() as bucket:
        yield bucket.url


def keys_of_a_user() -> dict[str, str]:
    iam = boto3.client("iam")
    iam.create_user(UserName="raydr")
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="raydr", PolicyName="all", PolicyDocument=json.dumps(everything))
    key: dict[str, str] = iam.create_access_key(UserName="raydr")["AccessKey"]
    return key


def test_a_wrong_secret_is_told_and_a_right_one_is_let_in(bucket, monkeypatch):
    from moto.core import set_initial_no_auth_action_count

    key = keys_of_a_user()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    with_keys = set_initial_no_auth_action_count(0)

    def reach(secret: str) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        fsspec.filesystem("s3").clear_instance_cache()
        with_keys(Places.of)(f"{bucket}/work")

    reach(key["SecretAccessKey"])
    with pytest.raises(ArtifactError, match=rf"cannot reach {bucket}/work \(PermissionError: .*AWS_SECRET_ACCESS_KEY"):
        reach("wrong")
    with pytest.raises(ArtifactError, match=rf"cannot reach {bucket}/data/corpus.jsonl \(PermissionError"):
        with_keys(find_input)(f"{bucket}/data", "corpus.jsonl", "passages")


def test_a_server_that_is_not_there_is_told(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(ArtifactError, match=rf"cannot reach {bucket}/work \(EndpointConnectionError: .*127.0.0.1:9"):
        require_reachable(f"{bucket}/work")


def test_what_is_not_there_yet_is_reachable(bucket, tmp_path):
    require_reachable(f"{bucket}/work")
    require_reachable("s3://another-bucket/work")
    require_reachable(str(tmp_path / "work"))


def test_messages_name_what_lies_in_a_store_by_its_url():
    """An evaluation ended with "report  BUCKET/w/store/...", which no other program opens."""
    folder = Folder("memory://damaged")
    with folder.publish("facts.json") as path:
        Path(path).write_text("{")
    with pytest.raises(DamagedError, match=r"^memory://damaged/facts.json is damaged"):
        folder.read_json("facts.json")
