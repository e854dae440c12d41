"""Arms and seeds side by side as Ray tasks; what is finished is not run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.arms import ArmData, ArmOptions, ArmResult, run_arm
from experiments.tasks import fetch
from raydr.config.run import RunConfig
from raydr.evaluation.metrics import parse_measures
from raydr.runtime.cluster import start_ray
from raydr.runtime.console import progress_bar, say
from raydr.store.artifact import Artifact, fingerprint_of
from raydr.training.config import NEUTRAL

#: Sections of the config that decide what an arm comes to.
_SECTIONS = {"data", "inject_noise", "negatives", "model", "train"}
#: Settings in them that say how it is computed and not what.
_NEUTRAL: Any = {"train": NEUTRAL}


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Args:
        name: of the arm.
        config: the run with the arm's training.
        data: what it trains on.
        options: what it does besides.
        inputs: fingerprints of the pairs, where the config does not decide alone which these are.
    """

    name: str
    config: RunConfig
    data: ArmData
    options: ArmOptions = field(default_factory=ArmOptions)
    inputs: tuple[str, ...] = ()

    def key(self, seed: int) -> str:
        """What tells the results of two settings apart; where results and models lie plays no part."""
        settings = self.config.model_dump(mode="json", include=_SECTIONS, exclude=_NEUTRAL)
        mined = self.data.negatives
        # How candidates were mined stands in sections that an arm does not depend on otherwise.
        candidates = [] if mined is None else [Artifact.open(mined, "negatives").fingerprint]
        # clean_only is not among them: it goes with the arm's name, which is in the file's.
        redrawn, seen = self.options.redraw_depth, self.config.search.top_k
        return fingerprint_of([settings, seed, *self.inputs, *candidates, redrawn, seen])

    def stem(self, seed: int) -> str:
        """What the files of its results are called."""
        return f"{self.name}-{seed}-{self.key(seed)}"


def model_folder(arm: Arm, seed: int, out: Path) -> Path:
    """Where :func:`run_arms` keeps the last state of an arm."""
    return (out / "models" / arm.stem(seed)).absolute()


def run_arms(arms: Sequence[Arm], seeds: Sequence[int], out: Path, keep_models: bool = False) -> list[ArmResult]:
    """All arms with all seeds; what is finished is read, the rest is run, as many at a time as fit.

    Args:
        arms: the arms, with names of their own.
        seeds: of the trainings.
        out: folder of the results, a file an arm and seed.
        keep_models: save each arm's last state, see :func:`model_folder`.
    """
    import ray

    start_ray()
    out.mkdir(parents=True, exist_ok=True)
    results: list[ArmResult] = []
    waiting = {}
    for seed in seeds:
        for arm in arms:
            file, model = out / f"{arm.stem(seed)}.json", model_folder(arm, seed, out)
            if (model.exists() or not keep_models) and (there := read_result(file, arm)) is not None:
                results.append(there)
                continue
            run = ray.remote(num_cpus=1, num_gpus=1 if arm.config.train.use_gpu else 0)(run_arm)
            options = replace(arm.options, model_folder=str(model)) if keep_models else arm.options
            waiting[run.remote(arm.config, arm.name, seed, arm.data, options=options)] = file
    if results:
        say(f"{len(results)} arms are there already, {len(waiting)} to run")
    with progress_bar("arms", total=len(waiting), unit="arms") as bar:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            file, result = waiting.pop(done), fetch(done)
            temporary = file.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(result)) + "\n", encoding="utf-8")
            temporary.rename(file)
            results.append(result)
            bar.advance(1)
            say(f"{result.arm}, seed {result.seed}: {result.seconds:,.0f} s of training")
    return results


def read_result(file: Path, arm: Arm) -> ArmResult | None:
    """What an earlier run has written, if it took all measures that are asked for."""
    if not file.exists():
        return None
    result = ArmResult(**json.loads(file.read_text(encoding="utf-8")))
    wanted = parse_measures(arm.config.evaluate.measures)
    return result if all(measure in result.values["last"] for measure in wanted) else None
