"""Leases on an S3 server of this process."""

from __future__ import annotations

import os
import threading
import time

import pytest
from botocore.exceptions import EndpointConnectionError
from s3_server import served_bucket

from raydr.artefacts.places import Places
from raydr.errors import BusyError
from raydr.pipeline.garbage import find_garbage
from raydr.store import lock as lease
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.store.lock import Lease, hold_lease, is_leased

IDENTITY = Identity(kind="run", config={"top_k": 10})


@pytest.fixture(scope="module")
def bucket():
    """The URL of a bucket on a server in this process."""
    with served_bucket() as bucket:
        yield bucket.url


@pytest.fixture
def folder(bucket, request):
    return Folder(f"{bucket}/{request.node.name}/store/run/abc")


def leases_of(folder: Folder) -> Folder:
    return Folder(folder.url.replace("/abc", "/.abc.lease"))


@pytest.mark.parametrize("name", ["a[1]", "a?", "a*"])
def test_a_name_is_no_pattern(bucket, name, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path))
    folder, other = Folder(f"{bucket}/names/{name}"), Folder(f"{bucket}/names/a1")
    for each in (folder, other):
        each.write_json("part.json", each.url)
    assert Folder(folder.localize_all()).read_json("part.json") == folder.url
    folder.remove()
    assert not folder.exists()
    assert other.files() == ["part.json"]


def test_of_many_processes_one_makes_an_artefact(folder):
    together = threading.Barrier(6)
    done = threading.Event()
    outcomes = []

    def try_it() -> None:
        together.wait()
        try:
            with begin(folder, IDENTITY) as making:
                done.wait()
                assert isinstance(making, Building)
                making.finish()
                outcomes.append("made")
        except BusyError:
            outcomes.append("busy")
        if len(outcomes) == 5:
            done.set()

    threads = [threading.Thread(target=try_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["busy"] * 5 + ["made"]
    with begin(folder, IDENTITY) as artifact:
        assert isinstance(artifact, Artifact)
    assert leases_of(folder).files() == []


def test_a_second_process_is_told_who_writes(folder):
    with hold_lease(folder):
        assert is_leased(folder)
        with pytest.raises(BusyError, match=rf"pid {os.getpid()}\) is writing s3://raydr-.*/store/run/abc"):
            hold_lease(folder).__enter__()
    assert not is_leased(folder)


def test_the_lease_of_a_killed_process_runs_out(folder):
    leases_of(folder).write_json("000000007.json", Lease(holder="gone, pid 1", expires=time.time() - 1).model_dump())
    assert not is_leased(folder)
    with hold_lease(folder):
        assert leases_of(folder).files() == ["000000008.json"]


def test_a_lease_is_renewed_while_it_is_held(folder, monkeypatch):
    monkeypatch.setattr(lease, "_RENEW_S", 0.01)
    with hold_lease(folder):
        (name,) = leases_of(folder).files()
        first = leases_of(folder).read_json(name)["expires"]
        while leases_of(folder).read_json(name)["expires"] == first:
            pass


@pytest.mark.parametrize(
    "error", [ConnectionError("reset by peer"), EndpointConnectionError(endpoint_url="http://s3")], ids=["system", "S3"]
)
@pytest.mark.parametrize("request_of", ["files", "write_json"])
def test_a_failed_request_does_not_end_the_renewals(folder, monkeypatch, request_of, error):
    answer, failed = getattr(Folder, request_of), threading.Event()

    def fails_once(self: Folder, *arguments: object) -> object:
        if threading.current_thread().name == "raydr-lease" and not failed.is_set():
            failed.set()
            raise error
        return answer(self, *arguments)

    monkeypatch.setattr(lease, "_RENEW_S", 0.01)
    monkeypatch.setattr(Folder, request_of, fails_once)
    with hold_lease(folder):
        (name,) = leases_of(folder).files()
        first = leases_of(folder).read_json(name)["expires"]
        [renewing] = [thread for thread in threading.enumerate() if thread.name == "raydr-lease"]
        while leases_of(folder).read_json(name)["expires"] == first:
            assert renewing.is_alive()
    assert failed.is_set()


@pytest.mark.parametrize("number", [1, 2])
def test_who_slept_through_a_lease_is_told(folder, monkeypatch, number):
    """Once its follower has ended, the next process begins with number 1 again, as the sleeper did."""
    monkeypatch.setattr(lease, "_RENEW_S", 0.01)
    taken = Lease(holder="other, pid 2", expires=time.time() + 3600)
    with pytest.raises(BusyError, match="could not be renewed in time"), hold_lease(folder):
        while any(thread.name == "raydr-lease" for thread in threading.enumerate()):
            # A renewal that had begun may overwrite it.
            leases_of(folder).write_json(f"00000000{number}.json", taken.model_dump())
    assert is_leased(folder), "what another process holds is left to it"


@pytest.mark.parametrize("number", [1, 2])
def test_a_sleeper_leaves_the_lease_of_its_follower(folder, number):
    """It wakes when its work is over, between two renewals: nothing has told it that its time was over."""
    taken = Lease(holder="other, pid 2", expires=time.time() + 3600)
    with pytest.raises(BusyError, match="could not be renewed in time"), hold_lease(folder):
        leases_of(folder).write_json(f"00000000{number}.json", taken.model_dump())
    assert is_leased(folder)
    assert leases_of(folder).files() == [f"00000000{number}.json"]


def test_what_is_being_made_is_no_garbage(folder, bucket, request):
    places = Places(Folder(f"{bucket}/{request.node.name}"))
    with pytest.raises(RuntimeError), begin(folder, IDENTITY) as making:
        making.folder.write_json("part.json", 1)
        assert find_garbage(places, 0) == []
        raise RuntimeError
    assert [entry.why for entry in find_garbage(places, 0)] == ["was begun and not finished"]
