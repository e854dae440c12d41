"""Ports for a Ray of a test's own."""

from __future__ import annotations

import random
import socket

#: Below Linux's own range for outgoing connections, and above the ports that Ray gives to its workers.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int, host: str = "") -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(num: int) -> list[int]:
    """Ports that nothing listens on now."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(_FIRST, _LAST), 200):
        if is_free(port):
            ports.append(port)
        if len(ports) == num:
            return ports
    raise RuntimeError(f"no {num} free ports between {_FIRST} and {_LAST}")
