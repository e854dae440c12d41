"""Drain this node when its cloud gives notice that the machine is taken back: `python drain_on_notice.py aws|gcp`.

A spot machine is told two minutes (AWS) or half a minute (Google Cloud) before it ends. Draining it lets Ray start
nothing more on it, and makes Ray Train count the end of its workers as the cloud's and not as theirs. Started beside
Ray by the worker_start_ray_commands; needs the standard library and Ray's command only.
"""

import os
import sys
import time
import urllib.error
import urllib.request

#: By cloud: its metadata server, and the seconds that are left at a notice.
CLOUDS = {"aws": ("http://169.254.169.254", 110), "gcp": ("http://metadata.google.internal", 25)}
LOOK_S = 5.0


def has_notice(cloud: str, server: str) -> bool:
    """Whether the machine is about to be taken back; a server that does not answer has given no notice."""
    try:
        if cloud == "gcp":
            path, headers = "computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
            return ask(f"{server}/{path}", headers) == "TRUE"
        token = ask(f"{server}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
        # 404 until there is one.
        return "action" in ask(f"{server}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except (urllib.error.URLError, TimeoutError):
        return False


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=2) as answer:
        return str(answer.read().decode()).strip()


def main() -> None:
    cloud = sys.argv[1]
    server, seconds = CLOUDS[cloud]
    server = os.environ.get("METADATA_SERVER", server)
    while not has_notice(cloud, server):
        time.sleep(LOOK_S)
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", f"{cloud} takes the machine back"]
    os.execvp("ray", ["ray", "drain-node", *reason, "--deadline-remaining-seconds", str(seconds)])


if __name__ == "__main__":
    main()
