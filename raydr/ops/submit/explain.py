"""What goes wrong with Ray's Job API, in the words of raydr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raydr.errors import ClusterError, first_line


@contextmanager
def explained(address: str) -> Iterator[None]:
    """What goes wrong with a request, as a :class:`ClusterError` that says what to do."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise ClusterError(_about_token(address, str(error))) from error
    except (RuntimeError, ValueError, requests.exceptions.RequestException) as error:
        raise ClusterError(_about_request(address, str(error))) from error
    except OSError as error:
        raise ClusterError(f"the connection to {address} broke: {first_line(error)}. Try again") from error


def _about_token(address: str, error: str) -> str:
    if "403" in error or "Invalid" in error:
        found = "it is not the token that this machine sends"
    else:
        found = "this machine sends none"
    return (
        f"the cluster at {address} asks for a token, and {found}. Put the cluster's token into ~/.ray/auth_token (or "
        "name its file in RAY_AUTH_TOKEN_PATH) and set RAY_AUTH_MODE=token here and on the cluster; "
        "ray get-auth-token prints the one of a machine. docs/cluster.md"
    )


def _about_request(address: str, error: str) -> str:
    if "No available agent" in error:
        return (
            f"the cluster at {address} has no agent that could start the job. If two Rays with dashboards run on one "
            "machine, their agents want the same port: start the second with another "
            "--dashboard-agent-listen-port. On a new cluster, wait a moment and try again"
        )
    if "exceeds the maximum" in error:
        return (
            "the working directory is too large to be sent: "
            f"{_last_line(error)}. List what the job does not need in .rayignore (the syntax of .gitignore), or give "
            "another --working-dir"
        )
    if "404" in error or "Expecting value" in error:
        return f"something answers at {address}, but not Ray's dashboard. The usual port is 8265"
    return f"the cluster at {address} refused the request: {_last_line(error)}"


def _last_line(text: str) -> str:
    """Of a traceback, what was raised; Ray ends its text with a full stop on a line of its own.

    >>> _last_line("Request failed: Traceback:\\n  File x\\nValueError: job 7 already exists\\n.")
    'ValueError: job 7 already exists'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return lines[-1] if lines else text
