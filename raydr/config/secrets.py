"""Checks that configs hold no secrets.

A config is stored in every artefact and logged to MLflow; a job's command and environment variables can be read by all
users of the cluster. So credentials come from the environment of the machines alone, and only their names are sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from raydr.errors import ConfigError

_SECRET_NAME = re.compile(
    r"(^|_)(SECRET|TOKEN|(PG)?PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|CONNECTION_STRING|"
    r"(ACCESS|API|PRIVATE|SECRET|STORAGE)_?KEY)(_|$)",
    re.IGNORECASE,
)
#: Names of variables with the place of a secret, not the secret.
_PLACE = re.compile(r"(_PATH|_FILE|_DIR|^GOOGLE_APPLICATION_CREDENTIALS)$", re.IGNORECASE)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s'\"]+)")
#: Parameter of a URL, after ``?`` or in a fragment, with the name of a secret.
_SECRET_PARAMETER = re.compile(
    r"[?#&;][^=&#;]*(token|pass|password|passwd|passphrase|pwd|secret|signature|sig|credentials?|key|auth)=[^&#;]",
    re.IGNORECASE,
)
#: Schemes whose URLs have a name before the @ that is no secret: an account to log in with, a container of Azure.
_NAMES_BEFORE_AT = re.compile(
    r"((git|hg|svn)\+)?(ssh|git|sftp|scp|rsync)|hdfs|abfss?|wasbs?|(postgres|mysql|mariadb|mssql|oracle)[\w+]*",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Return whether a variable with this name holds a secret.

    >>> [name for name in ("MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN_PATH", "OMP_NUM_THREADS",
    ...                    "TOKENIZERS_PARALLELISM", "HF_TOKEN", "PGPASSWORD", "AZURE_STORAGE_KEY")
    ...  if looks_secret(name)]
    ['MLFLOW_TRACKING_TOKEN', 'AWS_SECRET_ACCESS_KEY', 'HF_TOKEN', 'PGPASSWORD', 'AZURE_STORAGE_KEY']
    """
    return bool(_SECRET_NAME.search(name)) and not _PLACE.search(name)


def holds_credentials(text: str) -> bool:
    """Return whether a text has a URL with a password, or with a token or a signature among its parameters.

    >>> [text for text in ("http://mlflow:5000", "s3://bucket/a@b", "a: b@c", "abfs://container@account/x",
    ...                    "git+ssh://git@host/x", "postgresql://me@host/db") if holds_credentials(text)]
    []
    >>> [text for text in ("https://me:hush@mlflow.org", "http://TOKEN@host", "git+https://TOKEN@host/x.git",
    ...                    "https://x.org/a?X-Amz-Signature=1f", "http://host/#token=hush", "http://host/?a=1;key=hush",
    ...                    "--trec=s3://key:hush@bucket/x", "postgresql://me:hush@host/db")
    ...  if not holds_credentials(text)]
    []
    """
    return any(_has_credentials(scheme, unquote(rest)) for scheme, rest in _URL.findall(text))


def _has_credentials(scheme: str, rest: str) -> bool:
    before, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    name, _, password = before.partition(":")
    if at and (password or (name and not _NAMES_BEFORE_AT.fullmatch(scheme))):
        return True
    return _SECRET_PARAMETER.search(rest) is not None


#: Settings whose texts become names of files or runs, or addresses.
_NAMED = re.compile(
    r"(^|\.)(name|workdir|path|file|(passage_)?checkpoint|uri|experiment|registered_model|address|temp_dir)$"
    r"|^data\.reader\."
)

#: Maximum of bytes of a file's name and of a path in file systems.
_LONGEST, _LONGEST_PATH = 255, 4096


def refuse_unwritable(text: str, where: str, named: bool) -> None:
    """Check that files, databases and terminals can hold a text unchanged.

    Args:
        text: text to check.
        where: place of the text, for messages.
        named: whether the text becomes a name, which has no line breaks either.

    Raises:
        ConfigError: the text has NUL or half a surrogate pair; or a name has a control character or is too long.

    >>> refuse_unwritable("two\\nlines", "name", named=True)
    Traceback (most recent call last):
    raydr.errors.ConfigError: name is 'two\\nlines': '\\n' at its place 4 cannot be in a name; leave it out
    """
    for place, letter in enumerate(text, start=1):
        control = named and len(text) > 1 and (letter < " " or letter == "\x7f")
        if letter == "\0" or "\ud800" <= letter <= "\udfff" or control:
            shown = ascii(text) if len(text) < 200 else f"{text[:200]!a}..."
            what = "a name" if named else "a setting"
            raise ConfigError(f"{where} is {shown}: {letter!a} at its place {place} cannot be in {what}; leave it out")
    if named and (len(text.encode()) > _LONGEST_PATH or max(len(part.encode()) for part in text.split("/")) > _LONGEST):
        raise ConfigError(
            f"{where} is {text[:60]!a}..., of {len(text.encode())} bytes; a path has {_LONGEST_PATH} at most, and each "
            f"name in it {_LONGEST}"
        )


def texts_of(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in nested settings with their keys; items of a list have the key of the list."""
    if isinstance(settings, str):
        yield key, settings
    elif isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield from texts_of(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(settings, list | tuple):
        for inner in settings:
            yield from texts_of(inner, key)


def refuse_credentials(settings: Mapping[str, Any]) -> None:
    """Check that nested settings have no credentials and no unwritable texts.

    Raises:
        ConfigError: a value holds credentials, or cannot be written; the message has the key, and no credentials.
    """
    for key, text in texts_of(settings):
        refuse_unwritable(text, key, _NAMED.search(key) is not None)
        if holds_credentials(text):
            raise ConfigError(
                f"{key} is a URL that holds credentials. A config is stored in every artefact, and MLflow and Ray's "
                "dashboard show it: write the URL without them and set them in the environment, for example "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
