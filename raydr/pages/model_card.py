"""The README of a model that leaves: metadata for the hub, how to open it, figures, what noise was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from raydr.models.config import SIDES, ModelConfig
from raydr.pages.evaluation import EvaluationResult, Table, legend, measure_rows

#: What stands for the model's place in its examples.
_PLACE = "FOLDER_OR_HUB_NAME"


@dataclass(frozen=True)
class CardFacts:
    """What is known of a model.

    Args:
        name: of the model, with its run.
        system: what evaluations call it.
        model: how it turns texts into vectors.
        base_model: of the hub; empty if it was a folder.
        data_set: of the hub, that it was trained on; empty if it is not there.
        settings: what it was made with: the settings and inputs that decide what it is.
        training: counters of the training; empty for a checkpoint as it is.
        results: of the evaluations that it took part in.
        noise: a line for each thing that is known of noise in its training data.
        made_by: which raydr, when, as what.
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
    """The README: a YAML block that the hub reads, and Markdown."""
    model = facts.model
    sides = "; ".join(
        f"{side} of up to {model.side(side).max_length} tokens" + f", after `{prefix}`" * bool(prefix)
        for side in SIDES
        for prefix in [model.side(side).prefix.strip()]
    )
    between = repr(model.title_separator) if model.title == "join" else "a separator of two segments"
    parts = [
        f"---\n{_metadata(facts)}\n---\n\n# {facts.name}",
        f"A dense retriever, trained for noisy data by raydr: score function `{model.score.name}`, similarity "
        f"`{model.similarity}`: {sides}. A passage with a title is its title, {between}, and its text.",
        f"## Use\n\n{_usage(facts)}",
        "## Figures\n\n" + ("\n\n".join(map(_figures, facts.results)) or "It was not evaluated."),
        "## Noise in its training data\n\n" + "\n".join(f"- {line}" for line in facts.noise),
        f"## How it was made\n\n{_training(facts)}",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(facts: CardFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    late = facts.is_late_interaction and facts.model.similarity == "cosine"
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
    data = ModelCardData(
        library_name="PyLate" if late else "sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "raydr", *(["ColBERT", "PyLate"] if late else ["dense"])],
        base_model=facts.base_model or None,
        datasets=[facts.data_set] if facts.data_set else None,
        model_name=facts.name if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


_ONE_TOWER = f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer({_PLACE!r})
queries = model.encode_query(["a question"])
passages = model.encode_document(["a passage"])
model.similarity(queries, passages)"""
_TWO_TOWERS = f"""from sentence_transformers import SentenceTransformer

queries = SentenceTransformer({_PLACE!r} + "/query")
passages = SentenceTransformer({_PLACE!r} + "/passage")
scores = queries.similarity(queries.encode(["a question"]), passages.encode(["a passage"]))"""
_LATE = f"from sentence_transformers import MultiVectorEncoder\n\nmodel = MultiVectorEncoder({_PLACE!r})"
_PYLATE = f"from pylate import models\n\nmodel = models.ColBERT({_PLACE!r})"


def _usage(facts: CardFacts) -> str:
    model, late = facts.model, facts.is_late_interaction
    code = [_LATE if late else _TWO_TOWERS if model.towers == "two" else _ONE_TOWER]
    code += [_PYLATE] if late and model.similarity == "cosine" else []
    parts = [f"```python\n{example}\n```" for example in code]
    if not late and model.score.name != "dual":
        parts.append(f"That gives pooled vectors; raydr alone has the score function `{model.score.name}`.")
    parts.append(f"In raydr: `model: {{checkpoint: {_PLACE}}}`, which brings its settings with it.")
    return "\n\n".join(parts)


def _figures(result: EvaluationResult) -> str:
    title = f"On {result.split}: mean [{result.confidence:.0%} bootstrap interval over queries]. {legend(result)}"
    return f"{title}\n\n{_markdown(measure_rows(result))}"


def _markdown(table: Table) -> str:
    columns, rows = table
    # A star would begin an emphasis.
    lines = [columns, ["---"] * len(columns), *([cell.replace("*", r"\*") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _training(facts: CardFacts) -> str:
    lines = [facts.made_by]
    if rows := facts.training.get("history"):
        best = facts.training.get("best_epoch")
        chosen = "the last was kept" if best is None else f"epoch {best + 1} was best on dev"
        lines.append(f"{facts.training['num_examples']:,} queries, {len(rows)} epochs; {chosen}.")
    settings = yaml.safe_dump(dict(facts.settings), sort_keys=False, allow_unicode=True)
    lines.append(f"<details><summary>What decides what it is</summary>\n\n```yaml\n{settings}```\n\n</details>")
    return "\n\n".join(lines)
