"""A run's stages bound to its working folder, its Ray and its tracking.

Every verb of the command line is a method here. Stages take folders; a job knows which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydr.config.run import NAME, RunConfig
from raydr.errors import ConfigError, DataError
from raydr.graph.stage_times import StageTime, note_time
from raydr.graph.workspace import BM25, TRAINED, UNTRAINED, Workspace
from raydr.runtime.cluster import connected
from raydr.runtime.console import say, warn
from raydr.runtime.tracking import Tracker, open_run
from raydr.store.artifact import DONE, MANIFEST, PLAN, Artifact, Identity, begin, fingerprint_of
from raydr.store.folder import Folder

#: The resolved config of the last run in a working folder.
CONFIG_FILE = "config.yaml"
#: Marks what an attempt left that the input made fail.
_FAILED = "failed.json"


@contextmanager
def open_job(config: RunConfig, overwrite: bool = False, dashboard: bool = False) -> Iterator[Job]:
    """Connect to Ray, open the run's tracking, and bind the stages to the run's working folder.

    Args:
        config: the run.
        overwrite: replace what was made differently.
        dashboard: a Ray that is started here has its dashboard.
    """
    workspace = Workspace(Folder(config.workdir).absolute())
    with (
        connected(config.ray, dashboard),
        open_run(config.tracking, config.name, workspace.root, _tags(config)) as tracker,
    ):
        tracker.log_params(config.model_dump(mode="json"))
        tracker.log_text(config.to_yaml(), CONFIG_FILE)
        with workspace.root.publish(CONFIG_FILE) as path:
            Path(path).write_text(config.to_yaml(), encoding="utf-8")
        yield Job(config, workspace, tracker, overwrite)


def _tags(config: RunConfig) -> dict[str, str]:
    return {"raydr.config": fingerprint_of(config.model_dump(mode="json"))}


@dataclass(frozen=True)
class Job:
    """The stages of one run."""

    config: RunConfig
    workspace: Workspace
    tracker: Tracker
    overwrite: bool = False
    _replaced: set[str] = field(default_factory=set, init=False, repr=False)

    def replaces(self, output: Folder) -> bool:
        """Whether what lies at a place is made again: if the job overwrites, once, however many of its steps ask.

        Asking counts as doing it.
        """
        if not self.overwrite or output.root in self._replaced:
            return False
        self._replaced.add(output.root)
        return True

    @property
    def dataset(self) -> Folder:
        """What is trained on and evaluated: the noisy data set if noise is injected."""
        return self.workspace.noisy_dataset if self.config.inject_noise is not None else self.workspace.dataset

    @property
    def corpus(self) -> Folder:
        """What is encoded and searched."""
        return self.workspace.corpus

    @property
    def candidate_source(self) -> str:
        """Whose candidate negatives the run uses: what its config mines, BM25's if it mines none."""
        miner = self.config.negatives.miner if self.config.negatives is not None else BM25
        return TRAINED if miner == "run" else miner

    def prepare(self) -> tuple[Artifact, Artifact]:
        """Read the raw files into a corpus and a data set."""
        from raydr.stages.prepare import prepare_corpus, prepare_dataset
        from raydr.stages.sources import find_sources, source_checksums

        data, place, reader = self.config.data, self.workspace, self.config.data.reader
        with self._stage("prepare") as tracker:
            sources = find_sources(reader)
            checksums = source_checksums(reader, sources)
            settings = {"reader": reader.content_key(), "part_rows": data.part_rows}
            identity = Identity(kind="corpus", config=settings, inputs=sources.by_role("corpus", checksums))
            corpus = self._make(place.corpus, identity, prepare_corpus, reader, sources, data)
            inputs = {"corpus": corpus.fingerprint, **sources.by_role("dataset", checksums)}
            if data.max_queries:
                settings |= {"max_queries": dict(data.max_queries), "seed": self.config.seed}
            identity = Identity(kind="dataset", config=settings, inputs=inputs)
            dataset = self._make(
                place.dataset, identity, prepare_dataset, corpus, reader, sources, data, self.config.seed
            )
            log_made(tracker, corpus)
            log_made(tracker, dataset)
        return corpus, dataset

    def inject_noise(self) -> Artifact:
        """Make the training split noisy on purpose.

        Raises:
            ConfigError: the config has no section ``inject_noise``.
        """
        from raydr.stages.inject_noise import inject_noise

        config, place = self.config, self.workspace
        noise, split, seed = config.inject_noise, config.data.train_split, config.seed
        if noise is None:
            raise ConfigError("injecting noise needs a section inject_noise in the config, for example {share: 0.2}")
        dataset, corpus = Artifact.open(place.dataset, "dataset"), Artifact.open(place.corpus, "corpus")
        identity = Identity(
            kind="dataset",
            config={"inject_noise": noise.model_dump(), "seed": seed, "split": split},
            inputs={"corpus": corpus.fingerprint, "dataset": dataset.fingerprint},
        )
        with self._stage("inject-noise") as tracker:
            noisy = self._make(place.noisy_dataset, identity, inject_noise, dataset, corpus, noise, split, seed)
            log_made(tracker, noisy)
        return noisy

    def _make(
        self, output: Folder, identity: Identity, stage: Callable[..., dict[str, Any]], *arguments: Any
    ) -> Artifact:
        """What a stage makes, or the same that is there; starts anew where the input that an attempt failed for was
        mended."""
        if not output.exists(MANIFEST) and output.exists(PLAN) and output.exists(_FAILED):
            begun = Identity.model_validate(output.read_json(PLAN))
            if begun.kind == identity.kind and begun.fingerprint != identity.fingerprint:
                say(f"{output}: the input changed since the attempt that failed; starting anew")
                output.remove()
        with begin(output, identity, self.replaces(output)) as making:
            if isinstance(making, Artifact):
                say(f"{identity.kind} {output}: already there with the same fingerprint, reused")
                return making
            try:
                info = stage(making, *arguments)
            except DataError:
                output.write_json(_FAILED, {})
                raise
            output.remove(_FAILED)
            return making.finish(info, self.config.model_dump(mode="json"))

    def search_bm25(self, split: str) -> Artifact:
        """A BM25 run over a split; builds the BM25 index if it is not there."""
        from raydr.stages.bm25 import bm25, search_bm25

        place = self.workspace
        output = place.run(split, BM25)
        with self._stage(f"bm25-{split}") as tracker:
            bm25(self.config, self.corpus, place.bm25, self.replaces(place.bm25))
            run = search_bm25(self.config, split, self.dataset, self.corpus, place.bm25, output, self.replaces(output))
            log_made(tracker, run)
        return run

    def import_run(self, file: str, split: str, system: str) -> Artifact:
        """A run that another program has made.

        Args:
            file: in TREC format.
            split: whose queries it has.
            system: what it is called.

        Raises:
            ConfigError: the name is no name of a folder, or one that raydr gives to runs of its own.
        """
        from raydr.stages.runs import import_trec_run

        own = {BM25, UNTRAINED, TRAINED, *self.config.variants}
        if not NAME.fullmatch(system) or system in own:
            raise ConfigError(
                f"{system!r} cannot be the name of a run of another program: expected letters, digits, '.', '_' and "
                f"'-', and none of {', '.join(sorted(own))}"
            )
        with self._stage(f"import-{system}-{split}") as tracker:
            output = self.workspace.run(split, system)
            run = import_trec_run(file, output, self.replaces(output))
            log_made(tracker, run)
        self._warn_of_strangers(run)
        return run

    def _warn_of_strangers(self, run: Artifact) -> None:
        """Passages of another corpus would only show as measures near 0."""
        import numpy as np

        from raydr.data.corpus import Corpus
        from raydr.stages.runs import Run

        if not self.corpus.exists(MANIFEST):
            return
        found = Run(run).part(run.parts()[0])["passage_id"].unique().to_pylist()
        corpus = Corpus.open(self.corpus)
        strange = [found[at] for at in np.flatnonzero(corpus.find(found) < 0).tolist()]
        if strange:
            warn(
                f"{len(strange):,} of the first {len(found):,} passages of the run are not in the corpus at "
                f"{self.corpus}, the first is {strange[0]!r}: they count as wrong. Are its ids those of this corpus?"
            )

    def mine(self, split: str, system: str = "") -> Artifact:
        """Candidate hard negatives of a split: from a system's run, from BM25, or those that came with the data.

        Args:
            split: the split.
            system: whose run to mine; by default what ``negatives.miner`` says.
        """
        from raydr.stages.mine import mine

        source = system or self.candidate_source
        run = None if source == "source" else self.workspace.run(split, source)
        if source == BM25:
            self.search_bm25(split)
        output = self.workspace.negatives(f"{source}-{split}")
        with self._stage(f"mine-{split}") as tracker:
            negatives = mine(
                self.config,
                split,
                self.dataset,
                self.corpus,
                run,
                output,
                source,
                overwrite=self.replaces(output),
            )
            log_made(tracker, negatives)
        return negatives

    def judge(self, judges: list[str], split: str, system: str = "") -> list[Artifact]:
        """Judge candidate negatives, or annotated pairs, and write copies without what was found to be wrong.

        Args:
            judges: by name; those of the config if empty; ``truth`` keeps only the pairs that are known to be clean.
            split: the split.
            system: whose candidates; by default those that the config's miner has found.
        """
        from raydr.graph.judging import run_judges

        source = system or self.candidate_source
        with self._stage(f"judge-{split}") as tracker:
            made = run_judges(self, judges, split, source)
            for artifact in made:
                log_made(tracker, artifact)
        return made

    def audit(self, judges: list[str], split: str, model: str = "") -> Artifact:
        """Let judges look at the pairs and at the candidate negatives of a split, and report what they find.

        Args:
            judges: by name; if empty those of the config, and if it has none :data:`raydr.graph.auditing.JUDGES`.
            split: the split.
            model: of the working folder; by default ``judge.model`` if it is there, else the untrained encoder.
        """
        from raydr.graph.auditing import run_audit

        with self._stage(f"audit-{split}") as tracker:
            made = run_audit(self, judges, split, model)
            log_made(tracker, made)
            for part in made.parts():
                if part.endswith((".html", ".json", ".png")):
                    tracker.log_artifact(made.local(part))
        return made

    def report(self) -> str:
        """Put what is in the working folder on one page; returns its path."""
        from raydr.stages.report import report

        with self._stage("report") as tracker:
            page = report(self.config, self.workspace.root, self.dataset)
            tracker.log_artifact(self.workspace.root.localize(page))
        return self.workspace.root.path(page)

    def train(self, name: str = TRAINED, negatives: Folder | None = None, dataset: Folder | None = None) -> Artifact:
        """Train the dual encoder.

        Args:
            name: of the model in the working folder; the name of a variant trains that variant.
            negatives: mined or judged candidates; by default those that the config's miner has found for the training
                split.
            dataset: by default that of the run; a judged one has fewer pairs.
        """
        from raydr.stages.train import train

        config = self.config.variant(name)
        if negatives is None and config.draws_candidates:
            negatives = self.workspace.negatives(f"{self.candidate_source}-{config.data.train_split}")
        output = self.workspace.model(name)
        with self._stage(f"train-{name}", output) as tracker:
            tracker.log_params(config.train.model_dump(mode="json"))
            model = train(
                config,
                dataset or self.dataset,
                self.corpus,
                output,
                negatives,
                tracker.handle(),
                self.replaces(output),
            )
            log_made(tracker, model)
        return model

    def untrained(self) -> Artifact:
        """The starting checkpoint as a model, to compare with."""
        from raydr.stages.train import save_untrained

        output = self.workspace.model(UNTRAINED)
        return save_untrained(self.config, output, self.replaces(output))

    def encode(self, model: str = TRAINED, split: str = "") -> Artifact:
        """Encode the corpus, or the queries of a split, with a model of the working folder.

        The starting checkpoint as it is, ``untrained``, is put there if it is not.
        """
        from raydr.stages.encode import encode_passages, encode_queries

        place = self.workspace
        output = place.queries(split, model) if split else place.passages(model)
        overwrite = self.replaces(output)
        if model == UNTRAINED:
            self.untrained()
        with self._stage(f"encode-{model}-{split or 'passages'}", output) as tracker:
            if split:
                vectors = encode_queries(self.config, place.model(model), self.dataset, split, output, overwrite)
            else:
                vectors = encode_passages(self.config, place.model(model), self.corpus, output, overwrite)
            log_made(tracker, vectors)
        return vectors

    def index(self, model: str = TRAINED) -> Artifact:
        """Build the FAISS index over a model's passage vectors."""
        from raydr.stages.index import build_index

        output = self.workspace.index(model)
        with self._stage(f"index-{model}", output) as tracker:
            index = build_index(self.config, self.workspace.passages(model), output, self.replaces(output))
            log_made(tracker, index)
        return index

    def search(self, split: str, model: str = TRAINED) -> Artifact:
        """Search the queries of a split in a model's index; encodes them if they are not."""
        from raydr.stages.search import search

        self.encode(model, split)
        place = self.workspace
        output = place.run(split, model)
        with self._stage(f"search-{model}-{split}", output) as tracker:
            run = search(
                self.config,
                place.index(model),
                place.queries(split, model),
                output,
                self.replaces(output),
                system=model,
            )
            log_made(tracker, run)
        return run

    def evaluate(self, split: str, systems: list[str]) -> Artifact:
        """Evaluate the runs of some systems; each is compared with the first."""
        from raydr.stages.evaluate import evaluate

        runs = {system: self.workspace.run(split, system) for system in systems}
        output = self.workspace.evaluation(split)
        with self._stage(f"evaluate-{split}") as tracker:
            evaluation = evaluate(self.config, split, self.dataset, self.corpus, runs, output, self.replaces(output))
            log_made(tracker, evaluation)
            for part in evaluation.parts():
                tracker.log_artifact(evaluation.local(part))
        return evaluation

    def runs(self, split: str) -> list[str]:
        """Names of the systems that have a finished run over a split."""
        folder = self.workspace.root / "runs" / split
        return sorted({name.split("/")[0] for name in folder.files() if name.endswith("/manifest.json")})

    @contextmanager
    def _stage(self, name: str, output: Folder | None = None) -> Iterator[Tracker]:
        """A stage in MLflow; with an output, its time is kept unless the artefact was there already."""
        before = _created(output)
        num_parts = len(output.files(DONE)) if output is not None else 0
        started = time.monotonic()
        with self.tracker.stage(name) as tracker:
            yield tracker
        if _created(output) != before:
            seconds = time.monotonic() - started
            note_time(self.workspace.root, StageTime(stage=name, seconds=seconds, num_parts_before=num_parts))


def _created(output: Folder | None) -> str | None:
    """When the finished artefact at a place was made."""
    if output is None or not output.exists(MANIFEST):
        return None
    return str(output.read_json(MANIFEST).get("created"))


def log_made(tracker: Tracker, artifact: Artifact) -> None:
    """Fingerprints and counters of an artefact."""
    kind = artifact.manifest.identity.kind
    tracker.set_tags({f"raydr.{kind}": artifact.fingerprint, f"raydr.{kind}.path": str(artifact.folder)})
    numbers: dict[str, Any] = {key: value for key, value in artifact.info.items() if isinstance(value, int | float)}
    tracker.log_metrics({f"{kind}/{key}": float(value) for key, value in numbers.items()})
