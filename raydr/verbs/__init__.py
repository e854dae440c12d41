"""Verbs of the command line, in files by theme. This file lists them and imports none."""

from __future__ import annotations

#: The verbs in the order in which a run uses them: the module of this package that has each, and what it is for. The
#: module has a function of the verb's name, with ``_`` between words. It may have ``VERB_command`` beside it, where the
#: command takes something else; ``show_VERB``, which prints what the function returns; and ``next_after_VERB``, the
#: command to give next.
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
    "import-run": ("data", "Take over a run of another program."),
    "import-vectors": ("data", "Take over the vectors of any other embedder."),
    "evaluate": ("evaluation", "The whole run: systems side by side, with paired tests."),
    "benchmark": ("evaluation", "Systems on a public benchmark, beside what is known of it."),
    "benchmark noise": ("noise_benchmark", "Methods that find wrong labels, on sets people have judged."),
    "refresh": ("training", "Rounds of training, re-encoding, mining and judging."),
    "tune": ("training", "Search over settings of the training."),
    "audit": ("noise", "Estimate noise, and show the worst of it on one page."),
    "clean": ("clean", "A file of pairs without the mismatched ones."),
    "diagnose": ("noise", "What spoils a training, the likeliest cause first."),
    "why": ("noise", "Each negative of a query, its provenance and verdicts."),
    "review": ("noise", "A page on which people decide what judges doubt."),
    "report": ("evaluation", "All that a run has made, on one HTML page."),
    "export": ("data", "Write the data set for other trainers, or a model."),
    "submit": ("operations", "Run a verb as a job on a Ray cluster."),
    "doctor": ("operations", "Check versions, devices, disks, Ray, storage and MLflow."),
    "settings": ("operations", "List the settings of a run: key, type, default, meaning."),
    "gc": ("operations", "List or remove artefacts that no name reaches."),
}


def function_name(verb: str) -> str:
    """
    >>> function_name("inject-noise"), function_name("benchmark noise")
    ('inject_noise', 'benchmark_noise')
    """
    return verb.replace("-", "_").replace(" ", "_")
