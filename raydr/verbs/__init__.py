"""Verbs of the command line, in files by theme. This file lists them and imports none."""

from __future__ import annotations

#: Verbs in the order in which a run uses them: module of this package, and help line. The module defines a function of
#: the verb's name, with ``_`` between words. Optional companions: ``VERB_command``, if the command's arguments differ;
#: ``show_VERB``, which prints the result; ``next_after_VERB``, which suggests the next command.
VERBS = {
    "quickstart": ("evaluation", "Run everything, from raw files to a table of results."),
    "prepare": ("data", "Read raw files into a corpus and a data set."),
    "plan": ("operations", "Forecast time, memory, disk and cost of every stage."),
    "inspect": ("data", "Show counts, lengths, duplicates, gaps and examples of the data."),
    "inject-noise": ("data", "Inject noise into the training split."),
    "mine": ("retrieval", "Find candidate hard negatives."),
    "judge": ("noise", "Judge negatives and pairs, and remove the wrong ones."),
    "train": ("training", "Train the dual encoder, or the ranker."),
    "encode": ("retrieval", "Encode the corpus, or the queries of a split."),
    "index": ("retrieval", "Build the FAISS index over a model's passage vectors."),
    "search": ("retrieval", "Search the queries of a split, or a text."),
    "rerank": ("retrieval", "Rerank the run of a system."),
    "fuse": ("retrieval", "Fuse the runs of several systems."),
    "import-run": ("data", "Import a run of another program."),
    "import-vectors": ("data", "Import vectors of another embedder."),
    "evaluate": ("evaluation", "Run everything, and compare systems with paired tests."),
    "benchmark": ("evaluation", "Compare systems on a public benchmark with known results."),
    "benchmark noise": ("noise_benchmark", "Compare noise detection methods on human judgments."),
    "refresh": ("training", "Run rounds of training, re-encoding, mining and judging."),
    "tune": ("training", "Search over training settings."),
    "audit": ("noise", "Estimate noise, and show the worst on a page."),
    "clean": ("clean", "Write a file of pairs without the mismatched ones."),
    "diagnose": ("diagnosis", "List what harms a training, the likeliest cause first."),
    "why": ("noise", "Show each negative of a query, its provenance and verdicts."),
    "review": ("noise", "Open a page on which people decide doubtful verdicts."),
    "report": ("evaluation", "Write all results of a run on an HTML page."),
    "export": ("data", "Write the data set for other trainers, or a model."),
    "submit": ("operations", "Run a verb as a job on a Ray cluster."),
    "doctor": ("operations", "Check versions, devices, disks, Ray, storage and MLflow."),
    "settings": ("operations", "List the settings of a run: key, type, default, meaning."),
    "gc": ("operations", "List or remove artefacts that no name reaches."),
}


def function_name(verb: str) -> str:
    """Return the name of a verb's function.

    >>> function_name("inject-noise"), function_name("benchmark noise")
    ('inject_noise', 'benchmark_noise')
    """
    return verb.replace("-", "_").replace(" ", "_")
