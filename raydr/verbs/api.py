"""The verbs as functions: ``import raydr; raydr.train(config)``. Each connects to Ray, works, and says what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.job import open_job
from raydr.graph.workspace import TRAINED, Workspace
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from raydr.config.reference import SettingGroup
    from raydr.data.inspection_report import InspectionReport
    from raydr.graph.refresh import RefreshOutcome
    from raydr.indexing.searcher import Hit
    from raydr.ops.doctor.finding import Finding
    from raydr.ops.plan.plan import RunPlan
    from raydr.ops.submit.client import SubmittedJob
    from raydr.stages.why import QueryStory
    from raydr.store.artifact import Artifact
    from raydr.tuning.run import TuneOutcome


def prepare(config: RunConfig, overwrite: bool = False) -> tuple[Artifact, Artifact]:
    """Read the raw files into a corpus and a data set."""
    with open_job(config, overwrite) as job:
        return job.prepare()


def plan(config: RunConfig, refresh: bool = False) -> RunPlan:
    """Try the model on some of the prepared texts, and estimate time, memory, disk and money of every stage.

    Args:
        config: the run; its section ``plan`` has prices, or figures of a device that is not here.
        refresh: plan the refresh rounds instead of one training and its evaluation.
    """
    from raydr.ops.plan.run import run_plan

    with open_job(config) as job:
        return run_plan(job, refresh)


def inspect(config: RunConfig) -> InspectionReport:
    """Count and measure the prepared data, and show what deserves a look."""
    from raydr.stages.inspect import inspect as inspect_stage

    with open_job(config) as job:
        return inspect_stage(config, job.corpus, job.dataset, job.workspace.root / "inspection")


def inject_noise(config: RunConfig, overwrite: bool = False) -> Artifact:
    """Make the training split noisy on purpose, as ``inject_noise`` in the config says."""
    with open_job(config, overwrite) as job:
        return job.inject_noise()


def export(
    config: RunConfig,
    output: str,
    format: Literal["dpr", "beir", "triples"] = "beir",
    negatives: str = "",
    fold_whitespace: bool = False,
    overwrite: bool = False,
) -> Artifact:
    """Write the data set for other trainers, with the given negatives or its own.

    Args:
        config: the run.
        output: folder for the files.
        format: which trainers read it.
        negatives: folder of a ``negatives`` artefact.
        fold_whitespace: line breaks and tabs in texts become single spaces, for the line-based formats.
        overwrite: replace what is at ``output``.
    """
    from raydr.component import build
    from raydr.data.writers.base import Writer
    from raydr.stages.export import export as export_stage

    with open_job(config) as job:
        mined = Folder(negatives).absolute() if negatives else None
        settings: dict[str, object] = {"name": format}
        if fold_whitespace:
            settings["fold_whitespace"] = True
        return export_stage(
            config,
            job.corpus,
            job.dataset,
            mined,
            build(Writer, settings),
            Folder(output).absolute(),
            overwrite,
        )


def mine(config: RunConfig, split: str = "", system: str = "", overwrite: bool = False) -> Artifact:
    """Find candidate hard negatives; by default for the training split and with the configured miner."""
    with open_job(config, overwrite) as job:
        return job.mine(split or config.data.train_split, system)


def judge(
    config: RunConfig, judges: list[str] | None = None, split: str = "", system: str = "", overwrite: bool = False
) -> list[Artifact]:
    """Judge mined negatives and annotated pairs; by default of the training split and by the config's judges.

    Returns:
        The judged ``negatives``, and the ``dataset`` without the pairs that were dropped, whichever were judged.
    """
    with open_job(config, overwrite) as job:
        return job.judge(judges or [], split or config.data.train_split, system)


def refresh(config: RunConfig, overwrite: bool = False, dry_run: bool = False) -> RefreshOutcome | None:
    """Rounds of training and mining, as the section ``refresh`` says; evaluated after each.

    Args:
        config: the run.
        overwrite: do every step again, those that are done too.
        dry_run: show the steps that would run, with the reasons, and return None; the data must be prepared.
    """
    from raydr.graph.refresh import plan_only, run_refresh

    if dry_run:
        plan_only(config)
        return None
    with open_job(config, overwrite) as job:
        return run_refresh(job)


def audit(
    config: RunConfig, judges: list[str] | None = None, split: str = "", model: str = "", overwrite: bool = False
) -> Artifact:
    """Report what judges say of the annotated pairs and the candidate negatives: shares, examples, agreement.

    Args:
        config: the run.
        judges: by name; by default those of the config, and if it has none ``npc``, ``consistency`` and ``margin``.
        split: by default the training split.
        model: of the working folder, whose scores are judged; by default ``judge.model`` if it is there, else the
            untrained encoder, which is saved.
        overwrite: replace an audit, verdicts and an untrained encoder that were made differently.
    """
    with open_job(config, overwrite) as job:
        return job.audit(judges or [], split or config.data.train_split, model)


def report(config: RunConfig) -> str:
    """Put what is in the working folder on one self-contained HTML page; returns its path."""
    with open_job(config) as job:
        return job.report()


def why(config: RunConfig, query_id: str) -> QueryStory:
    """What the artefacts of the working folder say of one query; needs no Ray."""
    from raydr.stages.why import explain_query

    place = Workspace(Folder(config.workdir).absolute())
    dataset = place.noisy_dataset if config.inject_noise is not None else place.dataset
    return explain_query(place.root, dataset, place.corpus, query_id, config.data.train_split)


def train(
    config: RunConfig, name: str = TRAINED, negatives: str = "", dataset: str = "", overwrite: bool = False
) -> Artifact:
    """Train a dual encoder on Ray Train.

    Args:
        config: the run.
        name: of the model in the working folder; the name of a variant trains that variant.
        negatives: folder of a ``negatives`` artefact, for example a judged one; by default what the miner found.
        dataset: folder of a ``dataset`` artefact in place of the run's, for example a judged one.
        overwrite: replace a model that was trained differently.
    """
    with open_job(config, overwrite) as job:
        return job.train(
            name,
            Folder(negatives).absolute() if negatives else None,
            Folder(dataset).absolute() if dataset else None,
        )


def encode(config: RunConfig, model: str = TRAINED, split: str = "", overwrite: bool = False) -> Artifact:
    """Encode the corpus, or the queries of a split."""
    with open_job(config, overwrite) as job:
        return job.encode(model, split)


def index(config: RunConfig, model: str = TRAINED, overwrite: bool = False) -> Artifact:
    """Build the FAISS index over a model's passage vectors."""
    with open_job(config, overwrite) as job:
        return job.index(model)


def search(
    config: RunConfig, split: str = "", model: str = TRAINED, trec: str = "", overwrite: bool = False
) -> Artifact:
    """Search the queries of a split; by default of the first test split.

    Args:
        config: the run.
        split: the split.
        model: whose index; ``bm25`` searches with BM25.
        trec: also write the run in TREC format to this file.
        overwrite: search anew.
    """
    from raydr.graph.workspace import BM25
    from raydr.stages.runs import Run, export_trec

    split = split or _first_test_split(config)
    with open_job(config, overwrite) as job:
        run = job.search_bm25(split) if model == BM25 else job.search(split, model)
        if trec:
            folder, _, name = trec.rpartition("/")
            export_trec(Run.open(run.folder), Folder(folder or ".").absolute(), name, tag=model)
    return run


def import_run(config: RunConfig, file: str, system: str, split: str = "", overwrite: bool = False) -> Artifact:
    """Take over a run that another program has made, to mine candidates from or to evaluate beside others.

    Args:
        config: the run.
        file: in TREC format, plain or .gz; local or an fsspec URL.
        system: what it is called from now on.
        split: whose queries it has; by default the first test split.
        overwrite: replace a run of that name.
    """
    with open_job(config, overwrite) as job:
        return job.import_run(file, split or _first_test_split(config), system)


def search_text(config: RunConfig, text: str, model: str = TRAINED, top_k: int = 10) -> list[Hit]:
    """The passages that a trained model finds for one text; needs no Ray."""
    from raydr.indexing.searcher import Searcher

    place = Workspace(Folder(config.workdir).absolute())
    searcher = Searcher.open(place.index(model), place.corpus, place.model(model), config.search)
    return searcher.search([text], top_k)[0]


def evaluate(config: RunConfig, split: str = "", systems: list[str] | None = None, overwrite: bool = False) -> Artifact:
    """Evaluate runs side by side; by default all that there are for the first test split."""
    split = split or _first_test_split(config)
    with open_job(config, overwrite) as job:
        chosen = systems or job.runs(split)
        if not chosen:
            raise ConfigError(f"there is no run over split {split!r} in {job.workspace.root}/runs: run search first")
        return job.evaluate(split, chosen)


def quickstart(
    config: RunConfig | str | None = None, overrides: list[str] | None = None, overwrite: bool = False
) -> None:
    """The main job from raw files to a table; without a config, code search over installed Python packages."""
    from raydr.graph.quickstart import DEFAULT_CONFIG, run_main_job

    if not isinstance(config, RunConfig):
        config = RunConfig.load(config or DEFAULT_CONFIG, overrides)
    with open_job(config, overwrite) as job:
        run_main_job(job)


def tune(
    config: RunConfig,
    space: str | Mapping[str, Any],
    name: str = "",
    space_overrides: list[str] | None = None,
    overwrite: bool = False,
) -> TuneOutcome:
    """Search over settings of the training with Ray Tune; a search that was killed goes on.

    Args:
        config: the run; as it is, it is the first trial.
        space: a space file, or its content.
        name: of the search in the working folder; that of the file if empty.
        space_overrides: ``key.path=value`` for settings of the space file.
        overwrite: replace a search that was done differently.

    Returns:
        The ``search`` artefact, its trials, and how the best compares with the default.
    """
    from raydr.tuning.plan import open_plan
    from raydr.tuning.run import run_tune

    plan = open_plan(config, space, name, space_overrides or [])
    with open_job(config, overwrite, dashboard=plan.nested) as job:
        return run_tune(job, plan, name or plan.space.name)


def doctor(config: RunConfig | None = None) -> list[Finding]:
    """Check this machine, and with a config what the run needs; prints a table and returns what was found."""
    from raydr.ops.doctor.examine import examine, show

    findings = examine(config)
    show(findings)
    return findings


def settings(part: str = "") -> list[SettingGroup]:
    """What a config may hold, in groups: key, type, default and meaning.

    Args:
        part: only keys, and kinds of components, that this is a part of.

    Raises:
        ConfigError: nothing is called so.

    >>> settings("first_rank")[0].settings[0].key
    'negatives.first_rank'
    """
    from raydr.config.reference import find_settings, list_settings

    found = find_settings(list_settings(RunConfig), part)
    if not found:
        raise ConfigError(f"no setting or component has {part!r} in its name: raydr settings lists them all")
    return found


def submit(
    config: str,
    verb: str,
    arguments: Sequence[str] = (),
    overrides: list[str] | None = None,
    address: str = "",
    working_dir: str = ".",
    runtime_env: str = "",
    env: Mapping[str, str] | None = None,
    require_env: Sequence[str] = (),
    python: str = "python",
    submission_id: str = "",
    resources: Mapping[str, float] | None = None,
    wait: bool = True,
) -> SubmittedJob:
    """Run a verb as a job on a Ray cluster, through Ray's Job API.

    Args:
        config: the run's YAML file, in the working directory.
        verb: of the command line.
        arguments: of the verb, as on the command line.
        overrides: ``key.path=value``, as for ``--set``.
        address: Ray's dashboard; that of ``RAY_API_SERVER_ADDRESS``, else of this machine, if empty.
        working_dir: folder whose files are sent; the job runs in a copy of it.
        runtime_env: YAML file with more of Ray's runtime environment.
        env: variables for the job; none may be a secret, since Ray shows them.
        require_env: names of variables that the cluster's machines must have, secrets for example.
        python: the interpreter on the cluster that has Ray and raydr's dependencies.
        submission_id: name of the job.
        resources: reserved for the job's own process: ``num_cpus``, ``num_gpus``, ``memory``.
        wait: write the job's log to standard output until it is over.

    Raises:
        ConfigError: something is wrong with the request; nothing was sent.
        ClusterError: the cluster cannot be reached or refuses the job.
    """
    from raydr.ops.submit.client import follow, send
    from raydr.ops.submit.request import Sent, build_request

    request = build_request(
        config,
        verb,
        arguments,
        overrides or [],
        Sent(working_dir, env or {}, require_env, runtime_env, python),
        submission_id,
    )
    job = send(request, address, {name: amount for name, amount in (resources or {}).items() if amount})
    return follow(job) if wait else job


def _first_test_split(config: RunConfig) -> str:
    if not config.data.test_splits:
        raise ConfigError("data.test_splits is empty: name a split with --split")
    return config.data.test_splits[0]
