"""Who needs what: the nodes that a config leads to, and what they are called in the working folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raydr.config.run import RunConfig
from raydr.graph.declaring import Declaring
from raydr.graph.judging import Judged, asked_model, judge_all
from raydr.graph.node import Existing, Node
from raydr.graph.nodes import data, evaluation, noise, retrieval, training
from raydr.graph.places import BM25, TRAINED, UNTRAINED
from raydr.noise.judges.asked import CrossEncoder
from raydr.noise.judges.base import Judge
from raydr.stages.train_progress import Watcher
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: The candidates that came with the data.
SOURCE = "source"


@dataclass
class Recipe:
    """The nodes of one run, and their names.

    Args:
        run: its config.
        names: of the nodes that were asked for.
    """

    run: Declaring
    names: dict[str, Node] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        return self.run.config

    def named(self, name: str, node: Node) -> Node:
        """The node, under a name from now on."""
        self.names[name] = node
        return node

    # -- data

    def corpus(self) -> Node:
        return self.named("corpus", data.corpus(self.run))

    def dataset(self) -> Node:
        """What is trained on and evaluated: the noisy data set if noise is injected."""
        self.named("dataset", data.prepared(self.run))
        self.corpus()
        if self.config.inject_noise is None:
            return self.names["dataset"]
        return self.named("dataset-noisy", data.dataset(self.run))

    # -- candidates and verdicts

    def miner(self) -> str:
        """Who proposes the run's candidates: what the config says, BM25 if it says nothing."""
        return self.config.negatives.miner if self.config.negatives is not None else BM25

    def candidates(self, split: str, miner: str = "") -> Node:
        """Candidate hard negatives of a split.

        Args:
            split: the split.
            miner: ``source``, ``bm25``, or whose run is mined; that of the config if empty.
        """
        self.dataset()
        miner = miner or self.miner()
        ranked = None if miner == SOURCE else self.ranked(split, miner)
        return self.named(f"negatives/{miner}-{split}", noise.mined(self.run, miner, ranked, split))

    def ranked(self, split: str, system: str) -> Node:
        """The run that candidates are taken from: of BM25, of an imported run, of a model trained without judges."""
        if system in (BM25, UNTRAINED) or self._is_foreign(split, system):
            return self.search(split, system)
        return retrieval.search(self.run, self.base_model(system), system, split)

    def verdicts(self, judge: Judge, split: str, miner: str = "", model: str = "") -> Node:
        """What a judge says of the candidates, or the pairs, of a split.

        Args:
            judge: the rule.
            split: the split.
            miner: whose candidates.
            model: the retriever that is asked; ``judge.model`` if empty.
        """
        candidates = self.candidates(split, miner) if judge.subject == "negatives" else None
        name = f"{judge.name}-{miner or self.miner()}-{split}" if candidates is not None else f"{judge.name}-{split}"
        asked = model or self.config.judge.model
        learnt_from = None
        if isinstance(judge.asks(self.config.judge), CrossEncoder) and (candidates or self.config.negatives):
            learnt_from = self.candidates(self.config.data.train_split, miner)
        reads = asked_model(self.run, judge, candidates, split, self.base_model(asked), learnt_from)
        node = noise.verdicts(self.run, judge, split, candidates, reads)
        return self.named(f"verdicts/{name}{f'-{asked}' if asked != self.config.judge.model else ''}", node)

    def judged(self, judges: Sequence[Judge], split: str, miner: str = "") -> Judged:
        """What is left of the pairs and the candidates of a split when judges have spoken."""
        given = {judge: self.verdicts(judge, split, miner) for judge in judges}
        negatives = self.names.get(f"negatives/{miner or self.miner()}-{split}")
        found = judge_all(self.run, given, negatives, split)
        by_subject = {
            kind: "+".join(one.name for one in judges if one.subject == kind) for kind in ("negatives", "pairs")
        }
        if by_subject["negatives"] and found.negatives is not None:
            self.named(f"negatives/judged-{by_subject['negatives']}-{miner or self.miner()}-{split}", found.negatives)
        if found.pairs is not None:
            self.named(f"dataset-{by_subject['pairs']}", found.pairs)
        return found

    # -- models

    def model(self, name: str = TRAINED) -> Node:
        """A model of the run: ``trained``, ``untrained``, a variant, or another one that is there by its name."""
        self.dataset()
        if name == UNTRAINED:
            return self.named(f"models/{name}", training.untrained(self.run, self.config.model, name))
        if name != TRAINED and name not in self.config.variants:
            return self.existing(f"models/{name}", "model")
        return self.trained(name)

    def trained(
        self,
        name: str = TRAINED,
        negatives: Node | None = None,
        pairs: Node | None = None,
        watcher: Watcher | None = None,
    ) -> Node:
        """The config's training, or that of a variant.

        Args:
            name: of the model; that of a variant trains the variant.
            negatives: candidates in place of those that the config mines and judges.
            pairs: a data set in place of the run's, for example a judged one.
            watcher: whom the training tells how far it is; the console if None.
        """
        self.dataset()
        run = self.run.of(self.config.variant(name))
        used = Recipe(run, self.names)
        given = used.training_data() if negatives is None or pairs is None else Judged(None, None)
        node = training.trained(
            run,
            name,
            training.training_of(run),
            pairs or given.pairs or data.dataset(run),
            negatives or given.negatives,
            watcher=watcher,
        )
        return self.named(f"models/{name}", node)

    def training_data(self) -> Judged:
        """The candidates and the pairs that the config's judges leave to train on."""
        config, split = self.config, self.config.data.train_split
        candidates = self.candidates(split) if config.draws_candidates else None
        judges = [one for one in config.judge.judges if candidates is not None or one.subject == "pairs"]
        return self.judged(judges, split) if judges else Judged(candidates, None)

    def base_model(self, name: str) -> Node:
        """A model that judges or mines: trained without judges, on the data's own or BM25's candidates.

        Args:
            name: ``trained``, ``untrained``, a variant, or the name of a model that is there.
        """
        config = self.config
        if name != TRAINED and name not in config.variants:
            return self.model(name)
        update: dict[str, object] = {}
        if config.judge.judges:
            update["judge"] = config.judge.model_copy(update={"judges": []})
        if config.negatives is not None and self.miner() not in (SOURCE, BM25):
            update["negatives"] = config.negatives.model_copy(update={"miner": BM25})
        # Only what the config itself trains without judges has the name that the user gave.
        names = {} if update else self.names
        return Recipe(self.run.of(config.model_copy(update=update)), names).trained(name)

    def existing(self, name: str, kind: str) -> Node:
        """What a name points to, whatever it was made from.

        Raises:
            ArtifactError: there is no such name.
        """
        return Existing.of(self.run.facts.places.open(name, kind), name)

    # -- retrieval

    def passages(self, model: str = TRAINED) -> Node:
        return self.named(f"embeddings/{model}/passages", retrieval.passages(self.run, self.model(model), model))

    def queries(self, split: str, model: str = TRAINED) -> Node:
        node = retrieval.queries(self.run, self.model(model), model, split)
        return self.named(f"embeddings/{model}/queries-{split}", node)

    def index(self, model: str = TRAINED) -> Node:
        self.passages(model)
        return self.named(f"index/{model}", retrieval.index(self.run, self.model(model), model))

    def search(self, split: str, system: str = TRAINED) -> Node:
        """The run of a system: of BM25, of a model, or of another program."""
        name = f"runs/{split}/{system}"
        self.dataset()
        if system == BM25:
            self.named("bm25", retrieval.bm25(self.run))
            return self.named(name, retrieval.search_bm25(self.run, split))
        if self._is_foreign(split, system):
            return self.existing(name, "run")
        self.index(system)
        self.queries(split, system)
        return self.named(name, retrieval.search(self.run, self.model(system), system, split))

    def _is_foreign(self, split: str, system: str) -> bool:
        """Whether a system is there as a run of another program alone."""
        own = {BM25, TRAINED, UNTRAINED, *self.config.variants}
        places = self.run.facts.places
        return (
            system not in own
            and places.pointer(f"models/{system}") is None
            and (places.pointer(f"runs/{split}/{system}") is not None)
        )

    # -- results

    def systems(self, split: str) -> list[str]:
        """What is compared: BM25, the untrained and the trained model, variants, and other runs that are there."""
        own = [BM25, UNTRAINED, TRAINED, *self.config.variants]
        there = [name.rpartition("/")[2] for name in self.run.facts.places.names(f"runs/{split}")]
        return [*own, *(name for name in there if name not in own)]

    def evaluation(self, split: str, systems: Sequence[str]) -> Node:
        runs = {system: self.search(split, system) for system in systems}
        return self.named(f"evaluation/{split}", evaluation.evaluation(self.run, split, runs))

    def audit(self, judges: Sequence[Judge], split: str, model: str) -> Node:
        """A report of what judges say, with a model's scores."""
        asked = self.base_model(model)
        given = {judge.name: self.verdicts(judge, split, model=model) for judge in judges}
        on_candidates = any(judge.subject == "negatives" for judge in judges)
        negatives = self.candidates(split) if on_candidates else None
        return self.named(f"audits/{model}-{split}", noise.audit(self.run, asked, model, given, negatives, split))


def artifact_node(folder: str, kind: str) -> Node:
    """The node of an artefact that a user gives by its folder.

    Raises:
        ArtifactError: there is none.
    """
    return Existing.of(Artifact.open(Folder(folder).absolute(), kind), f"{kind} at {folder}")
