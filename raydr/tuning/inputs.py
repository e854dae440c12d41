"""What the trainings of a search read: candidates, verdicts and judged data, each distinct setting of them made once.

The artefacts lie under keys of what they are made from (:mod:`raydr.graph.steps`), so that trials that agree in the
sections ``negatives`` and ``judge`` share them, whatever else they differ in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph import stage_calls as make
from raydr.graph.retrieval_steps import Make
from raydr.graph.steps import Step, required
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.stages.apply_verdicts import FILTER_VERSION
from raydr.stages.judge import VERSION as JUDGE_VERSION
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


@dataclass(frozen=True)
class TrainingInputs:
    """What one training reads."""

    dataset: Folder
    negatives: Folder | None


@dataclass(frozen=True)
class Upstream:
    """Makes what trainings read; goes to the process that does so for all trials.

    Args:
        config: the run with what the space fixes; trials differ from it in ``negatives`` and ``judge`` here.
        root: the folder of all that is made.
        dataset: the data set of the run.
        corpus: its corpus.
        run: the ranked passages that candidates are taken from; None for those that came with the data.
        model: the retriever that judges ask; None if none does.
        judged: whether the judges of a trial's config look at its data.
    """

    config: RunConfig
    root: Folder
    dataset: Folder
    corpus: Folder
    run: Folder | None
    model: Folder | None
    judged: bool

    def make(self, trial: RunConfig) -> TrainingInputs:
        """What a trial's training reads; only what is not there is made."""
        steps: dict[str, Step] = {}
        found = self.plan(trial, steps)
        for step in required(list(steps.values())):
            step.run()
        dataset, negatives = found
        return TrainingInputs(
            dataset.folder if dataset is not None else self.dataset,
            negatives.folder if negatives is not None else None,
        )

    def plan(self, trial: RunConfig, steps: dict[str, Step]) -> tuple[Step | None, Step | None]:
        """The steps that lead to a trial's data set and negatives, None where those of the run are taken as they are.

        Args:
            trial: its config.
            steps: all steps by key, in order; what is missing is added.
        """
        config = self.config.model_copy(update={"negatives": trial.negatives, "judge": trial.judge})
        mined = None
        if trial.draws_candidates:
            mined = self._mine(config, steps)
        verdicts: dict[str, list[Step]] = {"negatives": [], "pairs": []}
        for judge in config.judge.judges if self.judged else []:
            verdicts[judge.subject].append(self._judge(config, judge, mined, steps))
        split = config.data.train_split
        judged, pairs = mined, None
        if verdicts["negatives"]:
            assert mined is not None
            needs = {"negatives": mined} | {step.label: step for step in verdicts["negatives"]}
            judged = self._add(
                steps, "judged", "negatives", {"split": split}, needs, partial(make.apply_verdicts, config, split)
            )
        if verdicts["pairs"]:
            needs = {step.label: step for step in verdicts["pairs"]}
            pairs = self._add(
                steps, "pairs", "dataset", {"split": split, "version": FILTER_VERSION}, needs,
                partial(make.filter_pairs, config, split, self.dataset),
            )  # fmt: skip
        return pairs, judged

    def _mine(self, config: RunConfig, steps: dict[str, Step]) -> Step:
        assert config.negatives is not None
        split, settings = config.data.train_split, config.negatives.fingerprint_settings()
        if self.run is not None:
            settings["run"] = Artifact.open(self.run, "run").fingerprint

        def keep(output: Folder, inputs: dict[str, Folder]) -> Artifact:
            from raydr.stages.mine import mine

            assert config.negatives is not None
            return mine(config, split, self.dataset, self.corpus, self.run, output, config.negatives.miner)

        return self._add(steps, "mined", "negatives", {"split": split, **settings}, {}, keep)

    def _judge(self, config: RunConfig, judge: Judge, mined: Step | None, steps: dict[str, Step]) -> Step:
        if judge.subject == "negatives" and mined is None:
            raise ConfigError(
                f"judge {judge.name} judges hard negatives, and the training has none: set negatives.miner and "
                "train.num_hard_negatives"
            )
        split = config.data.train_split
        needs = {"negatives": mined} if judge.subject == "negatives" and mined is not None else {}
        settings: dict[str, Any] = {
            "split": split,
            "judge": judge.fingerprint_settings(),
            "seed": config.seed,
            "version": JUDGE_VERSION,
        }
        own = self._own_model(config, judge, mined, steps)
        asked = None
        if own is not None:
            needs["model"] = own
        elif self.model is not None and not (judge.reads == "retriever" and config.judge.scores == "miner"):
            asked = self.model
            settings["model"] = Artifact.open(self.model, "model").fingerprint

        def give_verdicts(output: Folder, inputs: dict[str, Folder]) -> Artifact:
            from raydr.stages.judge import judge as give

            model = inputs.get("model", asked)
            return give(config, split, self.dataset, self.corpus, judge, output, inputs.get("negatives"), model)

        return self._add(steps, f"verdicts-{judge.name}", "verdicts", settings, needs, give_verdicts)

    def _own_model(self, config: RunConfig, judge: Judge, mined: Step | None, steps: dict[str, Step]) -> Step | None:
        """The model that only this judge asks."""
        training = make.training_settings(config)
        if isinstance(judge, Sieve):
            assert mined is not None
            assert self.model is not None
            retriever = self.model
            settings = {
                "sieve": config.judge.sieve.fingerprint_settings(),
                "depth": config.negatives.depth if config.negatives is not None else None,
                "train": training,
                "retriever": Artifact.open(retriever, "model").fingerprint,
            }

            def train_sieve(output: Folder, inputs: dict[str, Folder]) -> Artifact:
                from raydr.stages.train_sieve import train_sieve as fit

                return fit(config, self.dataset, self.corpus, retriever, inputs["negatives"], output)

            return self._add(steps, "sieve", "model", settings, {"negatives": mined}, train_sieve)
        if judge.reads == "cross_encoder":
            needs = {}
            if config.judge.classifier.num_hard_negatives:
                assert mined is not None
                needs["negatives"] = mined
            return self._add(
                steps,
                "classifier",
                "cross_encoder",
                {"classifier": config.judge.classifier.fingerprint_settings(), "seed": config.seed},
                needs,
                partial(make.train_classifier, config, self.dataset, self.corpus),
            )
        if judge.reads == "guide":
            guided = config.model_copy(update={"model": config.judge.guide})
            settings = {"guide": config.judge.guide.fingerprint_settings(), "seed": config.seed}
            return self._add(steps, "guide", "model", settings, {}, partial(make.untrained, guided))
        return None

    def _add(
        self,
        steps: dict[str, Step],
        label: str,
        kind: str,
        settings: dict[str, Any],
        needs: dict[str, Step],
        work: Make,
    ) -> Step:
        step = Step(label, self.root, kind, settings, needs, work)
        return steps.setdefault(step.key, step)


class Workshop:
    """Ray actor that makes what trials read, one thing after the other: what two trials need is made once."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    def make(self, trial: RunConfig) -> TrainingInputs:
        return self.upstream.make(trial)
