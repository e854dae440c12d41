"""A simulated S3 server (moto) in this process, with one bucket."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import fsspec


@dataclass(frozen=True)
class Bucket:
    """Its URL, and the variables by which a process finds the server; this process has them while it is served."""

    url: str
    variables: dict[str, str]


@contextmanager
def served_bucket() -> Iterator[Bucket]:
    """Serve a new bucket; the environment is as it was afterwards."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ |= variables
    try:
        # Buckets outlive their server: they are this process's.
        name = f"raydr-{uuid.uuid4().hex[:8]}"
        fsspec.filesystem("s3").mkdir(name)
        yield Bucket(f"s3://{name}", variables)
    finally:
        os.environ.clear()
        os.environ |= before
        fsspec.filesystem("s3").clear_instance_cache()
        server.stop()
