"""A node drains itself when its cloud's metadata server says that the machine is taken back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ray.scripts.scripts import cli

SCRIPT = Path(__file__).parents[2] / "cluster" / "drain_on_notice.py"


@contextmanager
def metadata_server(cloud: str, num_quiet: int) -> Iterator[str]:
    """Gives notice after so many questions; refuses those that the cloud's own server would refuse."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.reply(200 if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else 400, "a-token")

        def do_GET(self) -> None:
            asked.append(self.path)
            over = len(asked) > num_quiet
            if cloud == "gcp":
                known = self.headers.get("Metadata-Flavor") == "Google" and self.path.endswith("/instance/preempted")
                self.reply(200 if known else 403, "TRUE" if over else "FALSE")
            elif self.headers.get("X-aws-ec2-metadata-token") != "a-token":
                self.reply(401, "")
            else:
                self.reply(200 if over else 404, '{"action": "terminate"}' if over else "")

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *ignored: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("cloud", "seconds"), [("aws", "110"), ("gcp", "25")])
def test_a_node_is_drained_at_the_notice_and_not_before(cloud: str, seconds: str, tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n')
    ray.chmod(0o755)
    quick = f"import runpy, time; time.sleep = lambda s: None; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    with metadata_server(cloud, num_quiet=3) as server:
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "METADATA_SERVER": server}
        subprocess.run([sys.executable, "-c", quick, cloud], env=env, check=True)
    command, *options = (tmp_path / "asked").read_text().splitlines()
    arguments = dict(zip(options[::2], options[1::2], strict=True))
    assert arguments["--reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert arguments["--deadline-remaining-seconds"] == seconds
    # Ray has that command, with these options.
    known = {name for option in cli.commands[command].params for name in option.opts}
    assert set(arguments) <= known


@pytest.mark.parametrize(("file", "cloud"), [("cluster.yaml", "aws"), ("cluster/gcp.yaml", "gcp")])
def test_the_cluster_files_start_it_on_every_worker(file: str, cloud: str) -> None:
    text = (SCRIPT.parents[1] / file).read_text().partition("worker_start_ray_commands")[2]
    assert re.search(rf"nohup python /home/ray/raydr/cluster/drain_on_notice.py {cloud} .*&", text)
