"""A model that leaves: its files in a folder of their own, with a model card."""

from __future__ import annotations

import shutil
from pathlib import Path

from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.saved_config import read_config
from raydr.noise.chain import STRENGTH
from raydr.pages.model_card import CardFacts, model_card
from raydr.runtime.console import say, show_summary
from raydr.stages.evaluate import load_result
from raydr.stages.places import Places
from raydr.store.artifact import Artifact, Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.store.manifest import MANIFEST

CARD = "README.md"
#: What the training has kept beside the model.
_LEFT_OUT = ("detection/", "optimizer.pt")
#: On the hub, what the package of :data:`OFFLINE_CHECKPOINT` holds.
_OFFLINE_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def export_model(places: Places, name: str, target: Folder, again: bool = False) -> Artifact:
    """Copy a model, with a card that has its figures and what is known of its training data.

    Args:
        places: of the run.
        name: of the model in it.
        target: a folder, which is then as the hub wants it.
        again: replace what was exported before.

    Raises:
        ArtifactError: there is no such model.
        FingerprintError: another one was exported there, or it has been evaluated since.
    """
    model = places.open(f"models/{name}", "model")
    evaluations = _evaluations(places, name, model)
    inputs = {f"evaluation/{split}": one.fingerprint for split, one in evaluations.items()}
    inputs["model"] = model.fingerprint
    identity = Identity(kind="export", config={"model": name}, inputs=inputs)
    with begin(target, identity, again) as making:
        if not isinstance(making, Building):
            say(f"export {target}: already there")
            return making
        for part in model.parts():
            if not part.startswith(_LEFT_OUT):
                with target.publish(part) as path:
                    shutil.copyfile(model.local(part), path)
        with target.publish(CARD) as path:
            card = model_card(_facts(places, name, model, evaluations))
            Path(path).write_text(card, encoding="utf-8")
        making.record_files()
        shown = {"evaluated on": ", ".join(evaluations) or "nothing yet: raydr evaluate", "card": target.path(CARD)}
        show_summary(f"exported model {name}", shown)
        return making.finish({"format": "model"})


def _evaluations(places: Places, name: str, model: Artifact) -> dict[str, Artifact]:
    """The evaluations that have a name and took this very model, by split."""
    named = {one.partition("/")[2]: places.open(one, "evaluation") for one in places.names("evaluation")}
    return {
        split: one
        for split, one in named.items()
        if name in one.manifest.identity.config["systems"] and model.fingerprint in one.manifest.made_from
    }


def _facts(places: Places, name: str, model: Artifact, evaluations: dict[str, Artifact]) -> CardFacts:
    manifest = model.manifest
    config, made_of = manifest.run_config, manifest.identity
    reader = config["data"]["reader"]
    settings = read_config(model.local_folder())
    return CardFacts(
        name=f"{config['name']}-{name}",
        system=name,
        model=settings,
        base_model=_hub_name(settings.checkpoint),
        data_set=_hub_name(reader["path"]) if reader["name"] == "huggingface" else "",
        settings={"settings": made_of.config, "made from": made_of.inputs},
        training=model.info,
        results=[load_result(one) for one in evaluations.values()],
        noise=_noise(places, model),
        made_by=f"By raydr {manifest.raydr_version}, {manifest.created}, as model `{name}` of the config "
        f"`{config['name']}` (key `{model.fingerprint}`).",
    )


def _hub_name(name: str) -> str:
    """What the hub calls a checkpoint or a data set; empty if it was a folder."""
    if name == OFFLINE_CHECKPOINT:
        return _OFFLINE_NAME
    return "" if name.startswith(("/", ".", "~")) or Path(name).exists() else name


def _noise(places: Places, model: Artifact) -> list[str]:
    """What was found in the data that a model was trained on, as far as that is still there."""
    lines = []
    if put_in := model.manifest.run_config.get("inject_noise"):
        lines.append(f"Noise was put in on purpose: {put_in['share']:.0%}, {put_in['kind'].replace('_', ' ')}.")
    if detections := model.info.get("detections"):
        found = detections[-1]
        known = {key: found[key] for key in ("precision", "recall", "auroc") if found.get(key) is not None}
        quality = f" ({', '.join(f'{key} {value:.2f}' for key, value in known.items())})" if known else ""
        flagged = f"{found['share_flagged']:.1%} of the training pairs were flagged as mismatched{quality}, by the"
        if found["reason"]:
            flagged = f"Whether training pairs are mismatched could not be told ({found['reason']}), by the"
        lines.append(f"{flagged} detection for epoch {found['epoch'] + 1}.")
    inputs = {role: _input(places, model, role) for role in ("dataset", "negatives")}
    if (pairs := inputs["dataset"]) is not None and "judgments_after" in pairs.info:
        lines.append(f"Judges left {pairs.info['judgments_after']:,} of {pairs.info['judgments_before']:,} judgments.")
    if (mined := inputs["negatives"]) is not None and "judges" in mined.info:
        counts = ", ".join(f"{action.replace('_', ' ')} {mined.info[action]:,}" for action in STRENGTH)
        lines.append(f"Mined negatives as judged by {', '.join(mined.info['judges'])}: {counts}.")
    return lines or ["No detection and no judge was at work: pairs and negatives were taken as they came."]


def _input(places: Places, model: Artifact, kind: str) -> Artifact | None:
    key = model.manifest.identity.inputs.get(kind, "")
    folder = places.folder(kind, key)
    return Artifact.open(folder, kind) if key and folder.exists(MANIFEST) else None
