"""Exports for other programs: the data set with its negatives, and the model with its model card.

The card is the README that the hub reads; ``model_card.md`` is the template of its text.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raydr.artefacts.evaluation import load_result
from raydr.artefacts.places import Places
from raydr.console import percent, say, show_summary
from raydr.data import Corpus, Dataset
from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Writer
from raydr.distributed.parts import make_parts, total_counts
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.config import SIDES, ModelConfig, read_config
from raydr.noise.chain import STRENGTH
from raydr.pages.evaluation import EvaluationResult, Table, legend, measure_rows
from raydr.store import Artifact, Building, Folder, Identity, Part
from raydr.store.building import begin, record_part
from raydr.store.folder import write_part
from raydr.store.identity import MANIFEST


def export(
    making: Building, pool: Pool, corpus: Artifact, dataset: Artifact, negatives: Artifact | None, *, writer: Writer
) -> dict[str, Any]:
    """Write the files of a format, each in its own task, and ``manifest.json`` beside them.

    Rows that the format cannot hold are left out and counted in the summary and in the artefact's info.

    Args:
        making: the artefact.
        pool: runs the tasks.
        corpus: the passages.
        dataset: queries, judgments and the data set's own negatives.
        negatives: mined or judged negatives, which precede the data set's own; may be None.
        writer: writer of the format.

    Raises:
        DataError: the inputs do not belong together, or the format cannot hold a text or any row of them.
    """
    exported = Exported(Corpus(corpus), Dataset(dataset), negatives)
    exported.dataset.require_corpus(corpus)
    # A judged data set may be exported with negatives that were mined for the whole data set.
    fitting = (dataset.fingerprint, dataset.manifest.identity.inputs.get("dataset"))
    if negatives and negatives.manifest.identity.inputs.get("dataset", dataset.fingerprint) not in fitting:
        raise DataError(
            f"the negatives at {negatives.folder} were not made for the data set at {dataset.folder}: choose others "
            "with --negatives NAME"
        )
    files = {file.name: (writer, file, exported) for file in writer.files(exported)}
    make_parts(making, pool, _write_file, files, f"export: {writer.name}")
    totals = +total_counts(making, files)
    facts = {what: f"{count:,}" for what, count in totals.items()}
    show_summary(f"exported as {writer.name}", {**facts, "files": ", ".join(sorted(files)), "at": str(making.folder)})
    if not any(making.done[name].bytes for name in files):
        raise DataError(
            f"no row could be written to {making.folder} as {writer.name}; the counts above say why. If rows lack "
            "negatives, run raydr mine and export with --negatives NAME, or export with --shape pairs"
        )
    return {"format": writer.name, **totals}


def _write_file(folder: Folder, name: str, writer: Writer, file: OutputFile, exported: Exported) -> Mapping[str, Part]:
    counts: Counter[str] = Counter()

    def write(path: str) -> None:
        with open(path, "w", encoding="utf-8", newline="") as out:
            writer.write(file, exported, out, counts)

    made = write_part(folder, name, 0, write)
    rows = sum(count for what, count in counts.items() if not what.startswith(LEFT_OUT))
    part = Part.model_validate({**made, "rows": rows, "counts": counts})
    record_part(folder, name, part)
    return {name: part}


CARD = "README.md"
#: Parts of a model artefact that are not exported: the training keeps them beside the model.
_LEFT_OUT = ("detection/", "optimizer.pt")
#: The hub's name of :data:`OFFLINE_CHECKPOINT`.
_OFFLINE_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def export_model(places: Places, name: str, target: Folder, again: bool = False) -> Artifact:
    """Copy a model into a folder and write its model card there.

    Args:
        places: places of the run.
        name: name of the model in the run.
        target: the folder, in the layout of the hub.
        again: whether to replace an earlier export.

    Raises:
        ArtifactError: there is no such model.
        FingerprintError: the folder holds another model, or an export from before the model's last evaluation.
    """
    model = places.open(f"models/{name}", "model")
    evaluations = _evaluations(places, name, model)
    inputs = {f"evaluation/{split}": evaluation.fingerprint for split, evaluation in evaluations.items()}
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
        shown = {"evaluated on": ", ".join(evaluations) or "nothing yet: raydr evaluate", "card": target / CARD}
        show_summary(f"exported model {name}", shown)
        return making.finish({"format": "model"})


def _evaluations(places: Places, name: str, model: Artifact) -> dict[str, Artifact]:
    """Return the named evaluations that include exactly this model, by split."""
    named = {name.partition("/")[2]: places.open(name, "evaluation") for name in places.names("evaluation")}
    return {
        split: evaluation
        for split, evaluation in named.items()
        if name in evaluation.manifest.identity.config["systems"] and model.fingerprint in evaluation.manifest.made_from
    }


def _facts(places: Places, name: str, model: Artifact, evaluations: dict[str, Artifact]) -> CardFacts:
    manifest = model.manifest
    config, identity = manifest.run_config, manifest.identity
    reader = config["data"]["reader"]
    settings = read_config(model.local_folder())
    return CardFacts(
        name=f"{config['name']}-{name}",
        system=name,
        model=settings,
        base_model=_hub_name(settings.checkpoint),
        data_set=_hub_name(reader["path"]) if reader["name"] == "huggingface" else "",
        settings={"settings": identity.config, "made from": identity.inputs},
        training=model.info,
        results=[load_result(evaluation) for evaluation in evaluations.values()],
        noise=_noise(places, model),
        made_by=f"By raydr {manifest.raydr_version}, {manifest.created}, as model `{name}` of the config "
        f"`{config['name']}` (key `{model.fingerprint}`).",
    )


def _hub_name(name: str) -> str:
    """Return the hub's name of a checkpoint or a data set; empty for a folder or a URL."""
    if name == OFFLINE_CHECKPOINT:
        return _OFFLINE_NAME
    return "" if name.startswith(("/", ".", "~")) or "://" in name or Path(name).exists() else name


def _noise(places: Places, model: Artifact) -> list[str]:
    """Return sentences on noise in a model's training data, as far as its artefacts still exist."""
    lines = []
    if put_in := model.manifest.run_config.get("inject_noise"):
        lines.append(f"Noise was injected on purpose: {percent(put_in['share'])}, {put_in['kind'].replace('_', ' ')}.")
    if detections := model.info.get("detections"):
        detection = detections[-1]
        known = {key: detection[key] for key in ("precision", "recall", "auroc") if detection.get(key) is not None}
        quality = f" ({', '.join(f'{key} {value:.2f}' for key, value in known.items())})" if known else ""
        flagged = f"{detection['share_flagged']:.1%} of the training pairs were flagged as mismatched{quality}, by the"
        if detection["reason"]:
            flagged = f"Mismatched training pairs could not be told from others ({detection['reason']}), by the"
        lines.append(f"{flagged} detection for epoch {detection['epoch'] + 1}.")
    inputs = {role: _input(places, model, role) for role in ("dataset", "negatives")}
    if (pairs := inputs["dataset"]) is not None and "judgments_after" in pairs.info:
        lines.append(f"Judges left {pairs.info['judgments_after']:,} of {pairs.info['judgments_before']:,} judgments.")
    if (mined := inputs["negatives"]) is not None and "judges" in mined.info:
        counts = ", ".join(f"{action.replace('_', ' ')} {mined.info[action]:,}" for action in STRENGTH)
        lines.append(f"Mined negatives as judged by {', '.join(mined.info['judges'])}: {counts}.")
    return lines or ["Pairs and negatives were used as they are: no detection ran, and no judge."]


def _input(places: Places, model: Artifact, kind: str) -> Artifact | None:
    key = model.manifest.identity.inputs.get(kind, "")
    folder = places.folder(kind, key)
    return Artifact.open(folder, kind) if key and folder.exists(MANIFEST) else None


_TEMPLATE = Path(__file__).with_name("model_card.md")


@dataclass(frozen=True)
class CardFacts:
    """The content of a model card.

    Args:
        name: names of the run and of the model.
        system: the model's name in evaluations.
        model: settings of the model.
        base_model: name of the checkpoint on the hub; empty for a folder.
        data_set: name of the training data on the hub; empty if they are elsewhere.
        settings: settings and inputs that decide the weights.
        training: counters of the training; empty for a checkpoint that was not trained.
        results: evaluations of the model.
        noise: sentences on noise in its training data.
        made_by: version of raydr, time and name in the run.
    """

    name: str
    system: str
    model: ModelConfig
    base_model: str
    data_set: str
    settings: Mapping[str, Any]
    training: Mapping[str, Any]
    results: Sequence[EvaluationResult]
    noise: Sequence[str]
    made_by: str

    @property
    def is_late_interaction(self) -> bool:
        return all(self.model.vectors(side).kind == "tokens" for side in SIDES)


def model_card(facts: CardFacts) -> str:
    """Return the model card: a YAML block that the hub reads, and Markdown."""
    from huggingface_hub import ModelCard

    card = ModelCard.from_template(
        _metadata(facts),
        template_path=str(_TEMPLATE),
        facts=facts,
        late=facts.is_late_interaction,
        sides=SIDES,
        figures=[(result, legend(result), _markdown(measure_rows(result))) for result in facts.results],
        settings=yaml.safe_dump(dict(facts.settings), sort_keys=False, allow_unicode=True),
    )
    return f"{card}\n"


def _metadata(facts: CardFacts) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    in_pylate = facts.is_late_interaction and facts.model.similarity == "cosine"
    results = [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type=facts.data_set or "unknown",
            dataset_name=f"{facts.name}, {result.split}",
            dataset_split=result.split,
            metric_type=summary.measure,
            metric_name=summary.measure,
            metric_value=round(summary.mean, 5),
        )
        for result in facts.results
        for summary in result.summaries
        if summary.system == facts.system
    ]
    kinds = ["ColBERT", "PyLate"] if in_pylate else ["dense"]
    return ModelCardData(
        library_name="PyLate" if in_pylate else "sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "raydr", *kinds],
        base_model=facts.base_model or None,
        datasets=[facts.data_set] if facts.data_set else None,
        model_name=facts.name if results else None,
        eval_results=results or None,
    )


def _markdown(table: Table) -> str:
    columns, rows = table
    # A star would begin an emphasis.
    lines = [columns, ["---"] * len(columns), *([cell.replace("*", r"\*") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
