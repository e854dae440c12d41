"""Diagnoses of trainings."""

from __future__ import annotations

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.nodes import data
from raydr.graph.nodes.training import training_of
from raydr.stages.context import Declaring, encoders
from raydr.stages.declaration import Node
from raydr.stages.scoring import scoring_of


def diagnosis(run: Declaring, name: str, model: Node, untrained: Node, margins: Node | None) -> Node:
    """All checks over a training.

    Args:
        run: the config, or that of a variant.
        name: of the model.
        model: that was trained.
        untrained: as it was before.
        margins: cross-fitted, of its pairs; None: mismatched pairs are looked for without.
    """
    from raydr.stages.diagnose import KIND, VERSION, diagnose
    from raydr.stages.evidence_samples import SAMPLE_SIZE, DiagnosisJob

    config, encode, training = run.config, run.config.encode, training_of(run)
    arithmetic = run.facts.encoding(encode)
    inputs = {"model": model, "untrained": untrained, "dataset": model.inputs["dataset"], "corpus": data.corpus(run)}
    if "negatives" in model.inputs:
        inputs["negatives"] = model.inputs["negatives"]
    if margins is not None:
        inputs |= {"margins": margins, "fold": margins.inputs["model/0"]}
    held_out = config.data.held_out_splits
    return Node(
        KIND,
        run.label("diagnose", name),
        lambda work: diagnose(
            work.making,
            work.pool,
            DiagnosisJob(
                Dataset(work["dataset"]),
                Corpus(work["corpus"]),
                tuple(held_out),
                training,
                config.bm25,
                scoring_of(work.pool, work["model"], encode, arithmetic),
                scoring_of(work.pool, work["untrained"], encode, arithmetic),
                scoring_of(work.pool, work["fold"], encode, arithmetic) if margins is not None else None,
                work.get("negatives"),
                work.get("margins"),
                work.making.folder,
            ),
            settings=encode,
        ),
        {
            "held_out": held_out,
            "sample": SAMPLE_SIZE,
            "bm25": config.bm25.model_dump(mode="json"),
            **arithmetic.content,
        },
        inputs,
        VERSION,
        num_rows=lambda inputs: 2 * min(inputs["corpus"].rows("passages"), sum(SAMPLE_SIZE.values())),
        asks_model=True,
        demand=encoders(config),
        moves=True,
    )
