"""The page of a run: what has a name in its working folder, collected artefact by artefact; needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydr.artefacts import audit
from raydr.artefacts import evaluation as evaluate
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.console import show_summary, warn
from raydr.data.schema import read_parquet
from raydr.ops.browsing import browse
from raydr.pages.html import number
from raydr.pages.noise_plots import DetectedPairs, parse_fit, perplexity_histogram
from raydr.pages.ranker import RankerStory
from raydr.pages.run import ModelStory, RunStory, run_page
from raydr.pipeline.forecast import read_forecast
from raydr.pipeline.running import read_times
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import COMMANDS
from raydr.store.manifest import MANIFEST

#: The page, in the working folder.
PAGE = "report.html"


def write_report(config: RunConfig, places: Places) -> str:
    """Write the page of a run anew; returns its path.

    Args:
        config: names the run.
        places: of its working folder; the models, evaluations, audits and verdicts that have names are shown.
    """
    root, complete = places.root, _complete(places)

    def named(under: str, kind: str) -> list[tuple[str, Artifact]]:
        of_kind = {
            name: artifact
            for name, artifact in complete.items()
            if name.startswith(f"{under}/") and artifact.kind == kind
        }
        return [(name.partition("/")[2], artifact) for name, artifact in of_kind.items()]

    stories: dict[str, list[Any]] = {
        "models": [_model_story(name, model) for name, model in named("models", "model")],
        "evaluations": [
            (evaluate.load_result(artifact), f"evaluation/{name}/{evaluate.REPORT}")
            for name, artifact in named("evaluation", "evaluation")
        ],
        "audits": [
            (audit.load_result(artifact), f"audits/{name}/{audit.REPORT}")
            for name, artifact in named("audits", "audit")
        ],
        "verdicts": [(name, artifact.info) for name, artifact in named("verdicts", "verdicts")],
        "rankers": [RankerStory(name, artifact.info) for name, artifact in named("models", "cross_encoder")],
    }
    browsers = {
        result.split: browser
        for (result, _), (_, artifact) in zip(stories["evaluations"], named("evaluation", "evaluation"), strict=True)
        if (browser := browse(places, artifact)) is not None
    }
    others = _other_pages(places)
    story = RunStory(
        config.name, **stories, plan=_plan_story(root), pages=others, browsers=browsers, made=_made(places, complete)
    )
    page = run_page(story)
    with root.publish(PAGE) as path:
        Path(path).write_text(page, encoding="utf-8")
    counts = {name: len(listed) for name, listed in stories.items()}
    show_summary("report", {**counts, "pages": len(others), "at": root.path(PAGE)})
    return root.path(PAGE)


def _complete(places: Places) -> dict[str, Artifact]:
    """By name, the artefacts that are there; of the others, which another command may be making anew, it is said."""
    opened, missing = {}, []
    for name in places.names():
        if (pointer := places.pointer(name)) is None:
            continue
        if places.folder(pointer.kind, pointer.key).exists(MANIFEST):
            opened[name] = places.open(name, pointer.kind)
        else:
            missing.append(name)
    if missing:
        warn(f"not on the page: {', '.join(missing)}: removed, or being made anew by another command")
    return opened


def _made(places: Places, complete: Mapping[str, Artifact]) -> list[list[str]]:
    """What has a name: when it was made, in how many seconds, where it lies, and what makes it."""
    seconds = {timing.key: timing.seconds for timing in read_times(places.root)}
    rows = []
    for name, artifact in complete.items():
        took = number(seconds.get(artifact.fingerprint), ".1f")
        place = str(artifact.folder).removeprefix(f"{places.root}/")
        rows.append([name, artifact.manifest.created, took, place, COMMANDS.get(artifact.kind, "")])
    return rows


def _other_pages(places: Places) -> list[tuple[str, str]]:
    """What has a page of its own, and where: the refresh, the searches and the diagnoses."""
    root = places.root
    refresh = [("the refresh, round by round", f"refresh/{PAGE}")] if root.exists(f"refresh/{PAGE}") else []
    searches = [
        (f"the search {file.split('/')[1]}", file)
        for file in root.files("tune")
        if file.count("/") == 2 and file.endswith(PAGE)
    ]
    diagnoses = [(f"what spoils {name.partition('/')[2]}", f"{name}/{PAGE}") for name in places.names("diagnoses")]
    return refresh + searches + diagnoses


def _plan_story(root: Folder) -> tuple[str, list[str], list[list[str]]] | None:
    if (plan := read_forecast(root)) is None:
        return None
    return f"for {plan.num_passages:,} passages, rates of {plan.device}", *plan.beside(read_times(root))


def _model_story(name: str, model: Artifact) -> ModelStory:
    train = model.manifest.identity.config.get("training", {}).get("train", {})
    settings = ", ".join(
        [str(train.get("loss", {}).get("name", "nce" if train else ""))]
        + ["pair detection"] * bool(model.parts("detection"))
    )
    return ModelStory(name, settings, model.info, _histogram(name, model))


def _histogram(name: str, model: Artifact) -> bytes | None:
    """The perplexities of the last detection that a training has kept."""
    parts = set(model.parts())
    # A training that was interrupted, begun with other settings and taken up again has not kept all of them.
    kept = [detection for detection in model.info.get("detections", []) if _detection_part(detection) in parts]
    if not kept:
        return None
    table = read_parquet(model.local(_detection_part(kept[-1])), ["perplexity", "clean"])
    pairs = DetectedPairs(table["perplexity"].to_numpy(), table["clean"].to_numpy(), parse_fit(kept[-1]["fit"]))
    return perplexity_histogram(pairs, f"Training pairs of {name}, for epoch {kept[-1]['epoch'] + 1}")


def _detection_part(detection: Mapping[str, Any]) -> str:
    return f"detection/epoch-{detection['epoch'] + 1:03d}.parquet"
