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
from raydr.console import say, show_summary
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
    """Write the files of one format, each by a task of its own; ``manifest.json`` is put beside them.

    What a format cannot hold is left out and counted in the summary, and in the artefact's info.

    Args:
        making: the artefact.
        pool: where files are written.
        corpus: the passages.
        dataset: queries, judgments and the data set's own negatives.
        negatives: mined or judged negatives, which go before the data set's own; may be None.
        writer: of the format.

    Raises:
        DataError: the inputs were not made for each other, the format cannot hold a text as it is, or no row of them.
    """
    exported = Exported(Corpus(corpus), Dataset(dataset), negatives)
    exported.dataset.require_corpus(corpus)
    # What judges have left of a data set goes with what was mined for the whole.
    fitting = (dataset.fingerprint, dataset.manifest.identity.inputs.get("dataset"))
    if negatives and negatives.manifest.identity.inputs.get("dataset", dataset.fingerprint) not in fitting:
        raise DataError(
            f"the negatives at {negatives.folder} were not made for the data set at {dataset.folder}: give those that "
            "were"
        )
    files = {file.name: (writer, file, exported) for file in writer.files(exported)}
    make_parts(making, pool, _write_file, files, f"export: {writer.name}")
    totals = +total_counts(making, files)
    facts = {what: f"{count:,}" for what, count in totals.items()}
    show_summary(f"exported as {writer.name}", {**facts, "files": ", ".join(sorted(files)), "at": str(making.folder)})
    if not any(making.done[name].bytes for name in files):
        raise DataError(
            f"not one row could be written to {making.folder} as {writer.name}, see what was left out above: raydr "
            "mine finds negatives where rows need some (then --negatives NAME), and --shape pairs needs none"
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
#: What the training has kept beside the model.
_LEFT_OUT = ("detection/", "optimizer.pt")
#: On the hub, what the package of :data:`OFFLINE_CHECKPOINT` holds.
_OFFLINE_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def export_model(places: Places, name: str, target: Folder, again: bool = False) -> Artifact:
    """Copy a model and add a model card, with its figures and the noise of its training data.

    Args:
        places: of the run.
        name: of the model in the run.
        target: a folder, which then has the hub's layout.
        again: whether an earlier export is replaced.

    Raises:
        ArtifactError: there is no such model.
        FingerprintError: the folder has another model, or the model was evaluated since.
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
        shown = {"evaluated on": ", ".join(evaluations) or "nothing yet: raydr evaluate", "card": target.path(CARD)}
        show_summary(f"exported model {name}", shown)
        return making.finish({"format": "model"})


def _evaluations(places: Places, name: str, model: Artifact) -> dict[str, Artifact]:
    """Return the named evaluations of this very model, by split."""
    named = {name.partition("/")[2]: places.open(name, "evaluation") for name in places.names("evaluation")}
    return {
        split: evaluation
        for split, evaluation in named.items()
        if name in evaluation.manifest.identity.config["systems"] and model.fingerprint in evaluation.manifest.made_from
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
        results=[load_result(evaluation) for evaluation in evaluations.values()],
        noise=_noise(places, model),
        made_by=f"By raydr {manifest.raydr_version}, {manifest.created}, as model `{name}` of the config "
        f"`{config['name']}` (key `{model.fingerprint}`).",
    )


def _hub_name(name: str) -> str:
    """Return the hub's name of a checkpoint or a data set; empty for a folder."""
    if name == OFFLINE_CHECKPOINT:
        return _OFFLINE_NAME
    return "" if name.startswith(("/", ".", "~")) or Path(name).exists() else name


def _noise(places: Places, model: Artifact) -> list[str]:
    """Return sentences on noise in the data that a model was trained on, as far as its artefacts still exist."""
    lines = []
    if put_in := model.manifest.run_config.get("inject_noise"):
        lines.append(f"Noise was put in on purpose: {put_in['share']:.0%}, {put_in['kind'].replace('_', ' ')}.")
    if detections := model.info.get("detections"):
        detection = detections[-1]
        known = {key: detection[key] for key in ("precision", "recall", "auroc") if detection.get(key) is not None}
        quality = f" ({', '.join(f'{key} {value:.2f}' for key, value in known.items())})" if known else ""
        flagged = f"{detection['share_flagged']:.1%} of the training pairs were flagged as mismatched{quality}, by the"
        if detection["reason"]:
            flagged = f"Whether training pairs are mismatched could not be told ({detection['reason']}), by the"
        lines.append(f"{flagged} detection for epoch {detection['epoch'] + 1}.")
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


_TEMPLATE = Path(__file__).with_name("model_card.md")


@dataclass(frozen=True)
class CardFacts:
    """The content of a model card.

    Args:
        name: name of the model, with that of its run.
        system: the model's name in evaluations.
        model: settings by which it turns texts into vectors.
        base_model: its checkpoint on the hub; empty if that was a folder.
        data_set: its training data on the hub; empty if they are not there.
        settings: settings and inputs that decide the weights.
        training: counters of the training; empty for a checkpoint that was not trained.
        results: the evaluations that the model took part in.
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
    """Return the README: a YAML block that the hub reads, and Markdown."""
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
