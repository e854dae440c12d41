"""The nodes of a config's artefacts, and their names in the working folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raydr.artefacts import Context, Existing, Node, bm25, index, search
from raydr.artefacts import embeddings as encode
from raydr.artefacts.audit import audit
from raydr.artefacts.dataset import declare_corpus, declare_dataset, declare_prepared
from raydr.artefacts.evaluation import evaluation
from raydr.artefacts.model import untrained
from raydr.artefacts.negatives import SOURCE, mined
from raydr.artefacts.places import BM25, NOISY, TRAINED, UNTRAINED, vectors_name
from raydr.artefacts.ranker import cross_encoder
from raydr.artefacts.ranker_scores import reranked
from raydr.config.run import RANKER, RunConfig, check_name, check_retriever, is_ranker
from raydr.config.sections import PAIRS_JUDGE
from raydr.data.parts import split_scope
from raydr.errors import ConfigError
from raydr.evaluation.config import FUSED
from raydr.noise.judges.base import Judge
from raydr.pipeline import systems as foreign
from raydr.pipeline.judging import (
    SUBJECTS,
    Judged,
    RunJudging,
    declare_training,
    judge_all,
    judge_held_out,
    training_judges,
    without_judges,
)
from raydr.training.reports import Watcher
from raydr.training.training import Training


@dataclass
class Recipe:
    """The nodes of a run, and their names.

    Args:
        context: the run's config.
        names: the named nodes that were declared.
    """

    context: Context
    names: dict[str, Node] = field(default_factory=dict)
    #: Models whose teachers are being declared.
    learning: list[str] = field(default_factory=list)
    #: The config's own trainings, by name; each is declared once, although several runs and judges use it.
    trainings: dict[str, Node] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        return self.context.config

    def named(self, name: str, node: Node) -> Node:
        """Name a node.

        Raises:
            ConfigError: the name leads out of its folder, or is no valid file name.
        """
        for step in name.split("/"):
            # "+" joins the names of several judges; "@" precedes the searched partitions.
            for part in step.replace("@", "+").split("+"):
                check_name(part, name)
        self.names[name] = node
        return node

    # -- data

    def corpus(self) -> Node:
        return self.named("corpus", declare_corpus(self.context))

    def dataset(self) -> Node:
        """Declare the data set for training and evaluation: the noisy data set if noise is injected."""
        self.named("dataset", declare_prepared(self.context))
        self.corpus()
        if self.config.inject_noise is None:
            return self.names["dataset"]
        return self.named(NOISY, declare_dataset(self.context))

    # -- candidates and verdicts

    def miner(self) -> str:
        """Return the miner of the run's candidates: BM25 unless the config names another."""
        return self.config.negatives.miner if self.config.negatives is not None else BM25

    def candidates(self, split: str, miner: str = "") -> Node:
        """Declare the candidate hard negatives of a split.

        Args:
            split: the split.
            miner: ``source``, ``bm25``, or the system whose run is mined; by default that of the config.
        """
        self.dataset()
        miner = miner or self.miner()
        ranked = None if miner == SOURCE else self.ranked(split, miner)
        return self.named(f"negatives/{miner}-{split}", mined(self.context, miner, ranked, split))

    def ranked(self, split: str, system: str) -> Node:
        """Declare the run from which candidates are mined: of BM25, imported, or of a model trained without judges."""
        needs_no_training = system in (BM25, UNTRAINED) or foreign.is_run(self.context, split, system)
        if needs_no_training or foreign.is_embedder(self.context, system):
            return self.search(split, system)
        foreign.require_split(self.context, split, system)
        return search.of_model(self.context, self.base_model(system), system, split)

    def verdicts(self, judge: Judge, split: str, miner: str = "", model: str = "", label: str = "") -> Node:
        """Declare a judge's verdicts on the candidates, or the pairs, of a split.

        Args:
            judge: the judge.
            split: the split.
            miner: miner of the candidates.
            model: the judge's retriever; by default ``judge.model``.
            label: suffix of the label, and of the name in the working folder. Without it, a model other than
                ``judge.model`` is the suffix of the name.
        """
        self.dataset()
        default = self.config.judge.model
        retriever = model or default
        suffix = label or (retriever if retriever != default else "")
        made = RunJudging(self.context, split, self, miner or self.miner(), retriever, suffix).verdicts(judge)
        return replace(made, label=f"{made.label}-{label}") if label else made

    def judged(self, judges: Sequence[Judge], split: str, miner: str = "") -> Judged:
        """Declare the pairs and the candidates of a split that remain after judging."""
        verdicts = [self.verdicts(judge, split, miner) for judge in judges]
        negatives = self.names.get(f"negatives/{miner or self.miner()}-{split}")
        judged = judge_all(self.context, judges, verdicts, negatives, split)
        on_negatives, on_pairs = (
            "+".join(judge.name for judge in judges if judge.subject == subject) for subject in SUBJECTS
        )
        if on_negatives and judged.negatives is not None:
            self.named(f"negatives/judged-{on_negatives}-{miner or self.miner()}-{split}", judged.negatives)
        if judged.pairs is not None:
            self.named(f"dataset-{on_pairs}", judged.pairs)
        return judged

    # -- models

    def model(self, name: str = TRAINED) -> Node:
        """Declare a model of the run: ``trained``, ``untrained``, a variant, or another finished model by its name."""
        check_retriever(name)
        self.dataset()
        if name == UNTRAINED:
            return self.named(f"models/{name}", untrained(self.context, self.config.model, name))
        if name not in self.trainings:
            if name != TRAINED and name not in self.config.variants:
                return self.existing(f"models/{name}", "model")
            self.trainings[name] = self.trained(name)
        return self.trainings[name]

    def trained(
        self,
        name: str = TRAINED,
        negatives: Node | None = None,
        pairs: Node | None = None,
        watcher: Watcher | None = None,
    ) -> Node:
        """Declare the training of the config, or of a variant.

        Args:
            name: name of the model; the name of a variant trains the variant.
            negatives: candidates in place of those that the config mines and judges.
            pairs: a data set in place of the run's, for example a judged data set.
            watcher: receives progress updates; by default the console.

        Raises:
            ConfigError: the name is no valid folder name.
        """
        check_name(name, "model")
        self.dataset()
        context = self.context.of(self.config.variant(name))
        # All variants train on the same candidates: miners and judges are trained by the config itself.
        data = self._choose_data(negatives, pairs, bool(context.config.train.num_hard_negatives))
        return self.named(f"models/{name}", self.training(context, name, context.training(), data, watcher))

    def training(
        self, context: Context, name: str, settings: Training, data: Judged, watcher: Watcher | None = None
    ) -> Node:
        """Declare a training on candidates and pairs, with the other inputs of its loss and its detection.

        Args:
            context: the config, or a variant.
            name: name of the model.
            settings: settings of the training.
            data: candidates and pairs; without pairs, those of the config.
            watcher: receives progress updates; by default the console.
        """
        ranker = self._teacher(context, name) if context.config.train.loss.reads_ranker_scores else None
        return declare_training(context, name, settings, data, ranker, watcher=watcher)

    def _teacher(self, context: Context, name: str) -> Node:
        """Declare the model whose scores the training of the config, or of a variant, reads.

        Raises:
            ConfigError: models learn from each other.
        """
        if name in self.learning:
            circle = [*self.learning[self.learning.index(name) :], name]
            raise ConfigError(f"train.ranker: {' learns from '.join(circle)}; let one of them learn from ranker")
        self.learning.append(name)
        ranker = self.scorer(context.config.train.ranker)
        self.learning.pop()
        return ranker

    def ranker(self, name: str = RANKER, negatives: Node | None = None, pairs: Node | None = None) -> Node:
        """Declare the config's cross-encoder.

        Args:
            name: name of the model.
            negatives: candidates in place of those that the config mines and judges.
            pairs: a data set in place of the run's.
        """
        self.dataset()
        context, settings = self.context, self.config.ranker
        data, dev = Judged(negatives, pairs), self.ranker_dev()
        if settings.num_epochs:
            data = self._choose_data(negatives, pairs, bool(settings.num_hard_negatives))
        node = cross_encoder(context, settings, data.negatives, data.pairs, name=name, dev_run=dev)
        return self.named(f"models/{name}", node)

    def ranker_dev(self) -> Node | None:
        """Declare the miner's run over the dev split, which selects the ranker's epoch; None if no epoch is chosen."""
        settings, split = self.config.ranker, self.config.data.dev_split
        if not (settings.chooses_epoch and split):
            return None
        return self.ranked(split, foreign.with_dev_run(self.context, BM25 if self.miner() == SOURCE else self.miner()))

    def scorer(self, name: str) -> Node:
        """Declare a model that scores pairs: the config's cross-encoder, a finished cross-encoder, or a retriever."""
        if name == RANKER:
            return self.ranker()
        return self.existing(f"models/{name}", "cross_encoder") if is_ranker(name) else self.model(name)

    def _choose_data(self, negatives: Node | None, pairs: Node | None, hard_negatives: bool) -> Judged:
        """Return the inputs that a caller sets, completed by the config's data after judging."""
        complete = negatives is not None and pairs is not None
        own = Judged(negatives, pairs) if complete else self.training_data(hard_negatives and negatives is None)
        return Judged(negatives or own.negatives, pairs or own.pairs)

    def training_data(self, hard_negatives: bool) -> Judged:
        """Declare the pairs, and if hard negatives are drawn the candidates, that remain after the config's judges."""
        config, split = self.config, self.config.data.train_split
        candidates = self.candidates(split) if hard_negatives and config.negatives is not None else None
        judges = training_judges(config, hard_negatives)
        return self.judged(judges, split) if judges else Judged(candidates, None)

    def base_model(self, name: str) -> Node:
        """Declare a model for judging or mining, trained without judges or a ranker, on candidates of the data or BM25.

        Args:
            name: ``trained``, ``untrained``, a variant, or the name of an existing model.
        """
        config = self.config
        if name != TRAINED and name not in config.variants:
            return self.model(name)
        changed = without_judges(config, name, self.miner())
        # The user's name belongs only to a model that the config itself trains without judges.
        return Recipe(self.context.of(changed), self.names if changed is config else {}).trained(name)

    def existing(self, name: str, kind: str) -> Node:
        """Open the artefact of a name, with any settings and inputs.

        Raises:
            ArtifactError: there is no such name.
        """
        return Existing.of(self.context.facts.places.open(name, kind), name)

    # -- retrieval

    def passages(self, model: str = TRAINED) -> Node:
        if foreign.is_embedder(self.context, model):
            return foreign.vectors(self.context, model)
        return self.named(vectors_name(model), encode.passages(self.context, self.model(model), model))

    def queries(self, split: str, model: str = TRAINED) -> Node:
        return self.named(vectors_name(model, split), encode.queries(self.context, self.model(model), model, split))

    def index(self, model: str = TRAINED) -> Node:
        vectors = self.passages(model)
        if foreign.is_embedder(self.context, model):
            return self.named(f"index/{model}", index.of_vectors(self.context, vectors, model))
        return self.named(f"index/{model}", index.of_model(self.context, self.model(model), model))

    def search(self, split: str, system: str = TRAINED) -> Node:
        """Declare the run of a system: BM25, a model, another program or ``fused``.

        SYSTEM+MODEL is the run of SYSTEM reranked by MODEL. SYSTEM@own, SYSTEM@split and SYSTEM@all restrict the search
        to these partitions.
        """
        name = f"runs/{split}/{system}"
        self.dataset()
        if "+" in system:
            return self.reranked(split, *system.rpartition("+")[::2])
        system, scope = split_scope(system)
        if system == FUSED:
            return self.named(name, foreign.fuse_runs(self.context, split, self.search, scope))
        if system == BM25:
            self.named("bm25", bm25.bm25(self.context))
            return self.named(name, bm25.search(self.context, split, scope))
        if foreign.is_embedder(self.context, system):
            return self.named(name, foreign.search(self.context, self.index(system), system, split, scope))
        if scope is None and foreign.is_run(self.context, split, system):
            return foreign.run_of(self.context, split, system)
        foreign.require_split(self.context, split, system)
        self.index(system)
        self.queries(split, system)
        return self.named(name, search.of_model(self.context, self.model(system), system, split, scope=scope))

    def reranked(self, split: str, system: str, by: str = "") -> Node:
        """Declare the reranked run of a system.

        Args:
            split: the split.
            system: system of the run.
            by: the model that scores its top passages; by default ``rerank.model``.
        """
        by = by or self.config.rerank.model
        node = reranked(self.context, self.search(split, system), self.scorer(by), split, f"{system}+{by}")
        return self.named(f"runs/{split}/{system}+{by}", node)

    # -- results

    def systems(self, split: str) -> list[str]:
        """Return the systems that an evaluation compares on a split."""
        return foreign.compared(self.context, split)

    def evaluation(self, split: str, systems: Sequence[str]) -> Node:
        runs = {system: self.search(split, system) for system in systems}
        return self.named(f"evaluation/{split}", evaluation(self.context, split, runs, self.suspects(split, systems)))

    def suspects(self, split: str, systems: Sequence[str]) -> Node | None:
        """Declare verdicts on the labels of a split that is held out of noisy pairs; see :func:`judge_held_out`."""
        config, names = self.config, {name for system in systems for name in split_scope(system)[0].split("+")}
        trainings = [config.variant(name).train for name in (TRAINED, *config.variants) if name in names]
        suspects = judge_held_out(self.context, split, trainings)
        return suspects and self.named(f"verdicts/{PAIRS_JUDGE}-{split}", suspects)

    def audit(self, judges: Sequence[Judge], split: str, model: str, label: str = "") -> Node:
        """Declare a report of verdicts; ``model`` is the judges' retriever, and ``label`` names the report."""
        verdicts = {judge.name: self.verdicts(judge, split, model=model, label=label) for judge in judges}
        negatives = self.candidates(split) if any(judge.subject == "negatives" for judge in judges) else None
        made = audit(self.context, model, verdicts, negatives, split)
        made = replace(made, label=f"{made.label}-{label}") if label else made
        return self.named(f"audits/{label or model}-{split}", made)
