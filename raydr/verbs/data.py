"""Data verbs: ``prepare``, ``inspect``, ``inject-noise``, ``import-run``, ``import-vectors``, ``export``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raydr.artefacts.imported_vectors import imported_vectors
from raydr.artefacts.inspection import inspect as look
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED, Places, vectors_name
from raydr.artefacts.run import Run, imported_run
from raydr.component import build
from raydr.config.files import is_data
from raydr.config.first_config import first_config
from raydr.config.run import NAME, RunConfig, check_name, is_ranker
from raydr.console import say, warn
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.inspection_report import InspectionReport
from raydr.data.writers.base import Writer
from raydr.distributed.choose_pool import choose_pool
from raydr.distributed.cluster import ray_session
from raydr.errors import ConfigError
from raydr.evaluation.config import FUSED
from raydr.ops.export import export as write
from raydr.ops.export import export_model
from raydr.pipeline import systems as foreign
from raydr.pipeline.session import Session, open_session
from raydr.pipeline.why import dataset_of
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import MANIFEST, Identity
from raydr.verbs.command import (
    Again,
    DryRun,
    Overrides,
    TestSplit,
    Yes,
    first_test_split,
    overrides,
    suggest_next,
    takes_config,
)


@takes_config
def prepare(config: RunConfig, again: bool = False, dry_run: bool = False) -> list[Artifact]:
    """Read raw files into a corpus and a data set, and inject noise if the config says so.

    Returns:
        The corpus and the data set.
    """
    with open_session(config, again, dry_run) as session:
        dataset, corpus = session.recipe.dataset(), session.recipe.corpus()
        return session.make(corpus, dataset, anew=list(session.recipe.names.values()))


def prepare_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG|DATA")],
    set_: Overrides = None,
    again: Again = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Read raw files into a corpus and a data set; files without a config get a generated config.

    Args:
        config: YAML file of a run; or data, as a file or folder, for which a config is written.
    """
    if not is_data(config):
        if prepare(RunConfig.load(config, overrides(set_, yes)), again, dry_run):
            suggest_next("inspect", config, set_)
        return
    first = first_config(config)
    say(f"{config} is {first.what}")
    if held_out := first.raw["data"].get("hold_out"):
        shares = " and ".join(f"{share:.0%} for {split}" for split, share in held_out.items())
        say(f"missing splits are held out of the training queries: {shares} (data.hold_out)")
    if dry_run:
        say(f"{first.name}.yaml would be written:\n{first.text}")
        return
    file = first.write()
    say(f"config: {file}")
    prepare(RunConfig.load(file, overrides(set_, yes)), again)
    if first.trains:
        suggest_next("evaluate", str(file), set_, "for the whole run, with baselines and a report")
    else:
        systems = [part for system in (BM25, UNTRAINED) for part in ("--system", system)]
        suggest_next("evaluate", str(file), set_, "without training pairs", systems)


@takes_config
def inspect(config: RunConfig) -> InspectionReport:
    """Show counts, lengths, truncation, duplicates, gaps and examples of the prepared data."""
    with open_session(config) as session:
        [corpus, dataset] = session.make(session.recipe.corpus(), session.recipe.dataset())
        pool = choose_pool(corpus.rows("passages"))
        return look(
            pool,
            corpus,
            dataset,
            session.places.root / "inspection",
            model=config.model,
            settings=config.evaluate,
            train_split=config.data.train_split,
            seed=config.seed,
        )


@takes_config
def inject_noise(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Inject mismatched pairs or false negatives into the training split, by the section inject_noise."""
    if config.inject_noise is None:
        raise ConfigError("inject-noise needs a section inject_noise in the config, for example {share: 0.2}")
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.dataset())


@takes_config
def import_run(
    config: RunConfig,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    system: str,
    split: TestSplit = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Import a run of another program, such as Lucene's BM25, for mining or comparison.

    Args:
        file: run in TREC format, plain or .gz; a local path or URL.
        system: name of the run, for mine and evaluate.

    Raises:
        ConfigError: the name is invalid or reserved.
    """
    own = {BM25, UNTRAINED, TRAINED, FUSED, *config.variants}
    if not NAME.fullmatch(system) or system in own:
        raise ConfigError(
            f"system {system!r} is no valid name of an imported run: allowed are letters, digits, '.', '_' and '-', "
            f"except {', '.join(sorted(own))}"
        )
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        if is_ranker(system) or foreign.is_own(session.recipe.context, system):
            raise ConfigError(f"the run has a model called {system!r}: use another name for the imported run")
        node = imported_run(file, split, system, config.data.skip_own_id)
        made = session.make(session.recipe.named(f"runs/{split}/{system}", node))
        if made:
            _warn_of_unknown_ids(session, made[0], split)
        return made


def _warn_of_unknown_ids(session: Session, run: Artifact, split: str) -> None:
    """Warn of queries and passages that the data do not have; measures near 0 would be the only sign."""
    import numpy as np

    first = Run(run).part(run.parts()[0])
    queries, passages = (first[name].unique().to_pylist() for name in ("query_id", "passage_id"))
    if session.places.pointer("dataset") is not None:
        known = set(Dataset(session.places.open("dataset", "dataset")).queries(split)["query_id"].to_pylist())
        if strange := [query_id for query_id in queries if query_id not in known]:
            warn(
                f"{len(strange):,} of the first {len(queries):,} queries of the run are not in split {split!r} (first: "
                f"{strange[0]!r}) and are left out. Check the split, and that the run uses the ids of this data set."
            )
    if session.places.pointer("corpus") is not None:
        corpus = Corpus(session.places.open("corpus", "corpus"))
        if strange := [passages[at] for at in np.flatnonzero(corpus.find(passages) < 0).tolist()]:
            warn(
                f"{len(strange):,} of the first {len(passages):,} passages of the run are not in the corpus at "
                f"{corpus.artifact.folder} (first: {strange[0]!r}) and count as wrong. Check that the run uses the ids "
                "of this corpus."
            )


@takes_config
def import_vectors(
    config: RunConfig,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    system: str,
    split: str = "",
    ids: str = "",
    queries: str = "",
    query_ids: str = "",
    similarity: Literal["cosine", "dot"] = "cosine",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Import vectors of another embedder, to index, search, mine, judge and evaluate with them.

    Args:
        file: vectors: .npy, .npz, .parquet or .faiss; a local path or URL.
        system: name of the embedder, for index, search and mine.
        split: split of the queries; default: passages.
        ids: file of ids, an id a line or .npy, if FILE has none.
        queries: with passages in FILE, a file of query vectors of SPLIT, by default the first test split.
        query_ids: file of the queries' ids.
        similarity: similarity of the vectors.

    Raises:
        ConfigError: the name is invalid or reserved.
    """
    check_name(system, "system")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        recipe.dataset()
        if foreign.is_own(recipe.context, system):
            raise ConfigError(f"the run has a model called {system!r}: use another name for the embedder")
        sources = [(file, ids, "" if queries else split)]
        sources += [(queries, query_ids, split or first_test_split(config))] if queries else []
        return session.make(
            *(
                recipe.named(
                    vectors_name(system, of), imported_vectors(recipe.context, system, vectors, named, of, similarity)
                )
                for vectors, named, of in sources
            )
        )


@takes_config
def export(
    config: RunConfig,
    output: Annotated[str, typer.Argument()],
    format: Literal["dpr", "beir", "triples", "sentence-transformers"] = "beir",
    negatives: str = "",
    dataset: str = "",
    fold_whitespace: bool = False,
    shape: Literal["auto", "pairs", "triplets", "lists", "labelled"] | None = None,
    num_negatives: Annotated[int | None, typer.Option(min=1)] = None,
    model: str = "",
    again: bool = False,
) -> Artifact:
    """Write the data set, with mined and judged negatives, for other trainers; or a model for the hub.

    Args:
        output: folder or file to write.
        format: format to write.
        negatives: name or folder of mined or judged negatives; default: the data set's own.
        dataset: name or folder of another data set than the run's, e.g. dataset-npc of raydr judge.
        fold_whitespace: replace line breaks and tabs in texts by spaces (dpr, triples).
        shape: row of sentence-transformers; default: triplets with negatives, else pairs.
        num_negatives: negative columns in a row of lists; default: 1.
        model: export this model of the run, with a model card, instead of the data set.
        again: replace an export with other settings.
    """
    places = Places.of(config.workdir)
    if model:
        if negatives or dataset or shape or num_negatives or fold_whitespace:
            raise ConfigError("export --model writes a model: leave out the options of data sets")
        return export_model(places, model, Folder(output).absolute(), again)
    corpus = places.open("corpus", "corpus")
    data = _open(places, dataset, "dataset") if dataset else dataset_of(config, places).artifact
    mined = _open(places, negatives, "negatives") if negatives else None
    options = {"fold_whitespace": fold_whitespace or None, "shape": shape, "num_negatives": num_negatives}
    options = {key: value for key, value in options.items() if value is not None}
    if unfit := sorted(options.keys() - Writer.choices()[format].model_fields.keys()):
        raise ConfigError(f"export --format {format} does not take --{unfit[0].replace('_', '-')}: leave it out")
    writer = build(Writer, {"name": format, **options})
    inputs = {"corpus": corpus.fingerprint, "dataset": data.fingerprint}
    inputs |= {"negatives": mined.fingerprint} if mined is not None else {}
    identity = Identity(kind="export", config=writer.model_dump(mode="json"), inputs=inputs)
    target = Folder(output).absolute()
    with ray_session(config.ray), begin(target, identity, again) as making:
        if not isinstance(making, Building):
            say(f"export {target}: already there")
            return making
        pool = choose_pool(data.rows() + corpus.rows("passages"))
        return making.finish(write(making, pool, corpus, data, mined, writer=writer), config.model_dump(mode="json"))


def _open(places: Places, name_or_folder: str, kind: str) -> Artifact:
    """Open an artefact by its name in the working folder, with or without the folder of its kind, or by its folder."""
    if places.pointer(f"{kind}/{name_or_folder}") is not None:
        return places.open(f"{kind}/{name_or_folder}", kind)
    folder = Folder(name_or_folder).absolute()
    if places.pointer(name_or_folder) is None and folder.exists(MANIFEST):
        return Artifact.open(folder, kind)
    return places.open(name_or_folder, kind)
