"""The README of an exported model: metadata for the hub, usage, figures, and the noise of its training data.

``model_card.md`` is the template of its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raydr.models.config import SIDES, ModelConfig
from raydr.pages.evaluation import EvaluationResult, Table, legend, measure_rows

_TEMPLATE = Path(__file__).with_suffix(".md")


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
