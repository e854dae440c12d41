"""The judges of a run, one after the other: the models that they need, their verdicts, and the judged data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.errors import ConfigError
from raydr.graph.workspace import UNTRAINED
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.stages.apply_verdicts import apply_verdicts, clean_only, filter_pairs
from raydr.stages.encode import check_encoders
from raydr.stages.judge import judge as judge_stage
from raydr.store.artifact import MANIFEST, Artifact
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from raydr.graph.job import Job

#: In place of a judge's name: drop the pairs that were made noisy on purpose.
TRUTH = "truth"
#: Models in the working folder that judges make for themselves; the sieve's has its candidates' source behind it.
SIEVE, GUIDE = "sieve", "guide"
#: In place of a miner: the cross-encoder that is trained against random passages alone.
RANDOM = "random"


def run_judges(job: Job, names: list[str], split: str, source: str) -> list[Artifact]:
    """Give the verdicts of all judges, then put them together into judged data.

    Args:
        job: the run.
        names: judges by name, ``truth`` among them; those of ``judge.judges`` if empty.
        split: what is judged; the sieve judges the training split only, since it is trained on what it judges.
        source: whose candidates are judged: the ``negatives`` artefact ``SOURCE-SPLIT`` of the working folder.

    Returns:
        What training can use in place of what it had: the judged ``negatives``, the ``dataset`` with fewer pairs.

    Raises:
        ConfigError: no judge was named, or one cannot judge the split.
    """
    names = names or [one.name for one in job.config.judge.judges]
    if not names:
        raise ConfigError("no judge was named: list some in the section judge.judges, or give --judge NAME")
    if TRUTH in names:
        if len(names) > 1:
            raise ConfigError(f"judge {TRUTH} says all there is to say about pairs: use it alone")
        output = job.workspace.root / "dataset-clean"
        return [clean_only(job.config, split, job.dataset, output, job.replaces(output))]
    judges = [job.config.judge.judge(name) for name in names]
    negatives = job.workspace.negatives(f"{source}-{split}")
    verdicts: dict[str, list[Folder]] = {"negatives": [], "pairs": []}
    for one in judges:
        verdicts[one.subject].append(give_verdicts(job, one, split, source, job.config.judge.model).folder)
    together = {
        subject: "+".join(one.name for one in judges if one.subject == subject) for subject in ("negatives", "pairs")
    }
    results = []
    if verdicts["negatives"]:
        output = job.workspace.negatives(f"judged-{together['negatives']}-{source}-{split}")
        results.append(
            apply_verdicts(job.config, split, negatives, verdicts["negatives"], output, job.replaces(output))
        )
    if verdicts["pairs"]:
        output = job.workspace.root / f"dataset-{together['pairs']}"
        results.append(filter_pairs(job.config, split, job.dataset, verdicts["pairs"], output, job.replaces(output)))
    return results


def give_verdicts(job: Job, judge: Judge, split: str, source: str, model: str) -> Artifact:
    """Let one judge give its verdicts; the model that it needs is made first.

    Verdicts by another model of the working folder than ``judge.model`` lie beside those by that one.

    Args:
        job: the run.
        judge: the rule.
        split: what is judged.
        source: whose candidates, if it judges negatives.
        model: of the working folder, for the judges that ask it.

    Raises:
        ConfigError: its model cannot be asked on this cluster; before that model is trained.
    """
    on_negatives = judge.subject == "negatives"
    name = f"{judge.name}-{source}-{split}" if on_negatives else f"{judge.name}-{split}"
    asks_it = judge.reads == "random_sample" or (judge.reads == "retriever" and not _reads_miner(job, judge))
    if asks_it and model != job.config.judge.model:
        name += f"-{model}"
    output = job.workspace.verdicts(name)
    if not output.exists(MANIFEST) and not _reads_miner(job, judge):
        check_encoders(job.config.encode)
    return judge_stage(
        job.config,
        split,
        job.dataset,
        job.corpus,
        judge,
        output,
        job.workspace.negatives(f"{source}-{split}") if on_negatives else None,
        _model(job, judge, split, source, model),
        job.replaces(output),
    )


def _reads_miner(job: Job, judge: Judge) -> bool:
    return judge.reads == "retriever" and not isinstance(judge, Sieve) and job.config.judge.scores == "miner"


def _model(job: Job, judge: Judge, split: str, source: str, model: str) -> Folder | None:
    """The model whose scores a judge reads; made if the judge needs one of its own."""
    config, place = job.config, job.workspace
    training_split = config.data.train_split
    if judge.reads == "cross_encoder":
        from raydr.stages.train_classifier import train_classifier

        hard = config.judge.classifier.num_hard_negatives
        candidates = place.negatives(f"{source}-{training_split}") if hard else None
        output = place.root / "classifiers" / (source if hard else RANDOM)
        return train_classifier(config, job.dataset, job.corpus, candidates, output, job.replaces(output)).folder
    if judge.reads == "guide":
        from raydr.stages.train import save_untrained

        guided = config.model_copy(update={"model": config.judge.guide})
        output = place.model(GUIDE)
        return save_untrained(guided, output, job.replaces(output)).folder
    if _reads_miner(job, judge):
        return None
    if model == UNTRAINED:
        job.untrained()
    current = place.model(model)
    if isinstance(judge, Sieve):
        from raydr.stages.train_sieve import train_sieve

        if split != training_split:
            raise ConfigError(f"the sieve judges the split that it is trained on, {training_split!r}, not {split!r}")
        candidates = place.negatives(f"{source}-{split}")
        name = f"{SIEVE}-{source}"
        output = place.model(name if model == config.judge.model else f"{name}-{model}")
        return train_sieve(config, job.dataset, job.corpus, current, candidates, output, job.replaces(output)).folder
    return current
