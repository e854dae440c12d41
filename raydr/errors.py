"""The errors that raydr raises on purpose.

A message has the bad value, its place, the expected value and the remedy. The command line prints the message alone and
ends with the error's exit code; in Python they are ordinary exceptions.
"""

from __future__ import annotations


class RaydrError(Exception):
    """Base of errors in the input, the settings or the machine, as opposed to bugs in raydr."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # Ray Data appends advice about its retries to the arguments of a worker's error.
        return self.message


class ConfigError(RaydrError):
    """A setting is unknown, has the wrong type or is out of range."""

    exit_code = 2


class DataError(RaydrError):
    """Input data is missing, malformed or inconsistent."""


class ArtifactError(RaydrError):
    """An artefact is missing, incomplete, corrupt or of the wrong kind."""


class DamagedError(ArtifactError, ValueError):
    """A file that raydr wrote has other bytes now."""


class DiskFullError(ArtifactError):
    """A disk, or a quota on it, is full."""


class FingerprintError(ArtifactError):
    """An artefact at the output path was made from other inputs or another config."""


class BusyError(ArtifactError):
    """Another process is making the same artefact."""


class ModelError(RaydrError):
    """A checkpoint cannot be loaded, or does not fit its use."""


class EndpointError(RaydrError):
    """A server of language models does not answer, or refuses a request."""


class TrainingError(RaydrError):
    """Training cannot continue, for example because the loss is not finite."""


class ClusterError(RaydrError):
    """A Ray cluster does not answer, refuses a request, or lost a job."""


class NodeLostError(ClusterError):
    """The node of a task is lost: the cloud took it back, or it broke."""


class TuningError(RaydrError):
    """A search over settings has no result."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its kind if it has no text, and before a bare key.

    >>> first_line(OSError("gone\\nfor good")), first_line(ConnectionResetError()), first_line(KeyError("act"))
    ('gone', 'ConnectionResetError', "KeyError: 'act'")
    """
    kind, text = type(error).__name__, str(error).strip()
    return (f"{kind}: {text}" if isinstance(error, KeyError) else text or kind).splitlines()[0][:300]
