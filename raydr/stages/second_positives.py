"""Second positives for the training queries, and the corpus that holds the passages made for them.

Artefact ``second_positives``::

    second_positives/SPLIT/part-00000.arrow   second_positives(query_id, passage_id, made, made_from, shift)
    passages/part-made-00000.arrow            passages(...), those that the corpus does not have yet

An extended corpus is a ``corpus`` artefact of its own: the parts of the old one under their names, the new passages in
a last part, the lookup of both. The old corpus stays as it is.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.config.run import RunConfig
from raydr.data.answer_positives import find_answers
from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus, hash_content, hash_strings
from raydr.data.dataset import Dataset
from raydr.data.recut_positives import recut
from raydr.data.renamed_positives import rename_positives
from raydr.data.schema import read_arrow, to_table, write_arrow
from raydr.data.second_positives import Judged, NewPassage, Passage, SecondPositive, read_judged
from raydr.errors import ConfigError, DataError
from raydr.evaluation.config import EvaluateConfig
from raydr.runtime.console import say, show_summary
from raydr.stages.tasks import fetch, results
from raydr.store.artifact import Artifact, Identity, Part, begin, write_and_record
from raydr.store.folder import Folder

KIND = "second_positives"
#: Sorts behind the parts of any corpus, so that the rows of its passages stay the same.
_NEW_PART = "passages/part-made-00000.arrow"


def find_second_positives(
    config: RunConfig, dataset: Folder, corpus: Folder, output: Folder, overwrite: bool = False
) -> Artifact:
    """Make second positives for the training queries by ``config.inject_noise.sources``.

    Nothing is planted here and no share is applied: all that can be made is made.

    Args:
        config: the run; ``evaluate`` says how answers are compared and which queries have answers to look for.
        dataset: a data set without injected noise.
        corpus: the corpus it was made with.
        output: where the artefact goes.
        overwrite: replace what is there.

    Raises:
        ConfigError: the config names no sources.
        DataError: the data set was made with another corpus, or a new passage would get an id that is taken.
    """
    import ray

    settings = config.inject_noise
    if settings is None or not settings.sources:
        raise ConfigError(
            "second positives need inject_noise.sources in the config, for example "
            "inject_noise: {kind: false_negatives, sources: [recut]}"
        )
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    data.require_corpus(passages.artifact)
    split = config.data.train_split
    answers = {
        "answer_match": config.evaluate.answer_match,
        "answer_query_prefixes": config.evaluate.answer_query_prefixes,
    }
    identity = Identity(
        kind=KIND,
        config={**settings.making_key(), **answers, "seed": config.seed, "split": split},
        inputs={"corpus": passages.fingerprint, "dataset": data.fingerprint},
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"second positives {output}: already there with the same fingerprint, reused")
            return state
        job = ray.remote(num_cpus=1)(_find)
        parts, counts = fetch(job.remote(settings, config.evaluate, config.seed, split, dataset, corpus, output))
        state.done.update(parts)
        artifact = state.finish({"split": split, **counts}, run_config=config.model_dump(mode="json"))
    show_summary(
        f"second positives made for {split}: {', '.join(settings.sources)}",
        {name.replace("_", " "): f"{value:,}" for name, value in counts.items()} | {"at": str(output)},
    )
    return artifact


def extend_corpus(
    config: RunConfig, corpus: Folder, second_positives: Folder, output: Folder, overwrite: bool = False
) -> Artifact:
    """A corpus with all passages of ``corpus``, in its order, and those that second positives added.

    Raises:
        DataError: the second positives were made for another corpus, or added no passages.
    """
    import ray

    passages, made = Corpus.open(corpus), Artifact.open(second_positives, KIND)
    if made.manifest.identity.inputs["corpus"] != passages.fingerprint:
        raise DataError(f"the second positives at {second_positives} were made for another corpus than {corpus}")
    if not made.parts("passages"):
        raise DataError(f"the second positives at {second_positives} added no passages: use the corpus as it is")
    identity = Identity(kind="corpus", inputs={"corpus": passages.fingerprint, "second_positives": made.fingerprint})
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"extended corpus {output}: already there with the same fingerprint, reused")
            return state
        copy, index = ray.remote(num_cpus=1)(_copy_part), ray.remote(num_cpus=1)(_write_lookup)
        todo = [(corpus, "corpus", name) for name in passages.part_names if name not in state.done]
        todo += [(second_positives, KIND, name) for name in made.parts("passages") if name not in state.done]
        pending = [copy.remote(folder, kind, name, output) for folder, kind, name in todo]
        for name, part in results(pending, "extending the corpus", "parts"):
            state.done[name] = part
        state.done.update(fetch(index.remote(corpus, second_positives, output)))
        num_added = made.rows("passages")
        artifact = state.finish(
            {**passages.artifact.info, "num_passages": len(passages) + num_added, "num_added": num_added},
            run_config=config.model_dump(mode="json"),
        )
    show_summary(
        "corpus extended",
        {"passages": f"{len(passages) + num_added:,}", "of these new": f"{num_added:,}", "at": str(output)},
    )
    return artifact


def _find(
    settings: NoiseInjectionConfig,
    evaluate: EvaluateConfig,
    seed: int,
    split: str,
    dataset: Folder,
    corpus: Folder,
    output: Folder,
) -> tuple[dict[str, Part], dict[str, int]]:
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    judged = read_judged(data.queries(split), data.qrels(split), evaluate.answer_match, evaluate.answer_query_prefixes)
    new: list[NewPassage] = []
    rows: list[SecondPositive] = []
    lookup = partial(_lookup, passages)
    golds = lookup(sorted({one for ids in judged.positives.values() for one in ids}))
    if "recut" in settings.sources:
        _add(recut(judged, lookup, settings.recut_words, seed), new, rows)
    if "renamed" in settings.sources:
        _add(rename_positives(judged, golds, seed), new, rows)
    new, rows = _without_copies(passages, new, rows)
    if "answer" in settings.sources:
        queries = data.queries(split)
        questions = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
        rows += find_answers(judged, questions, golds, passages.parts(), settings.answer_overlap)
    rows.sort(key=lambda row: (row.query_id, row.passage_id))
    parts = {}
    table = to_table(KIND, ({**asdict(row), "made_from": list(row.made_from)} for row in rows))
    tables = {f"{KIND}/{split}/part-00000.arrow": table}
    if new:
        tables[_NEW_PART] = _new_passages(new)
    for name, one in tables.items():
        parts[name] = write_and_record(output, name, len(one), partial(write_arrow, one))
    return parts, _counts(judged, new, rows)


def _add(
    found: tuple[list[NewPassage], list[SecondPositive]], new: list[NewPassage], rows: list[SecondPositive]
) -> None:
    new.extend(found[0])
    rows.extend(found[1])


def _lookup(corpus: Corpus, passage_ids: list[str]) -> dict[str, Passage]:
    found = corpus.find(passage_ids)
    there = [at for at, row in enumerate(found.tolist()) if row >= 0]
    texts = corpus.texts(found[there])
    return {
        passage_ids[at]: Passage(passage_ids[at], title, text)
        for at, title, text in zip(there, texts.titles, texts.texts, strict=True)
    }


def _without_copies(
    corpus: Corpus, new: list[NewPassage], rows: list[SecondPositive]
) -> tuple[list[NewPassage], list[SecondPositive]]:
    """Leave out new passages whose content the corpus has already, and refuse ids that it has already."""
    new = sorted(new, key=lambda one: one.passage.passage_id)
    ids = [one.passage.passage_id for one in new]
    taken = [passage_id for passage_id, row in zip(ids, corpus.find(ids).tolist(), strict=True) if row >= 0]
    if taken:
        raise DataError(
            f"{len(taken)} new passages would get ids that the corpus at {corpus.artifact.folder} has already, the "
            f"first is {taken[0]!r}: was it extended before? Start from the corpus as it was prepared"
        )
    table = _new_passages(new)
    copies = corpus.has_contents(hash_content(table["title"], table["text"])).tolist()
    kept = [one for one, copy in zip(new, copies, strict=True) if not copy]
    kept_ids = {one.passage.passage_id for one in kept}
    return kept, [row for row in rows if row.passage_id in kept_ids]


def _new_passages(new: list[NewPassage]) -> pa.Table:
    return to_table(
        "passages",
        (
            {**asdict(one.passage), "source": f"{one.made}: {' '.join(one.made_from)}", "line": at}
            for at, one in enumerate(new, start=1)
        ),
    )


def _counts(judged: Judged, new: list[NewPassage], rows: list[SecondPositive]) -> dict[str, int]:
    counts = {
        "queries": len(judged.positives),
        "queries_with_answers": len(judged.matchers),
        "new_passages": len(new),
        "second_positives": len(rows),
        "queries_with_second_positive": len({row.query_id for row in rows}),
    }
    by_source = Counter(row.made for row in rows)
    return counts | {f"second_positives_by_{made}": by_source[made] for made in sorted(by_source)}


def _copy_part(source: Folder, kind: str, name: str, output: Folder) -> tuple[str, Part]:
    opened = Artifact.open(source, kind)
    local, rows = opened.local(name), opened.manifest.parts[name].rows
    return name, write_and_record(output, name, rows, partial(_copy, local))


def _write_lookup(corpus: Folder, second_positives: Folder, output: Folder) -> dict[str, Part]:
    """The lookup arrays of the old passages followed by the new ones."""
    old, made = Artifact.open(corpus, "corpus"), Artifact.open(second_positives, KIND)
    table = pa.concat_tables([read_arrow(made.local(name)) for name in made.parts("passages")])
    arrays = {
        key: np.load(old.local(f"lookup/{key}.npy"), mmap_mode="r", allow_pickle=False)
        for key in ("id_hash", "row", "content_hash")
    }
    id_hash = np.concatenate([arrays["id_hash"], hash_strings(table["passage_id"])])
    num_old = len(arrays["row"])
    row = np.concatenate([arrays["row"], np.arange(num_old, num_old + len(table), dtype=np.int64)])
    order = np.argsort(id_hash, kind="stable")
    contents = np.concatenate([arrays["content_hash"], hash_content(table["title"], table["text"])])
    extended = {"id_hash": id_hash[order], "row": row[order], "content_hash": contents}
    return {
        name: write_and_record(output, name, len(array), partial(_save, array))
        for name, array in ((f"lookup/{key}.npy", array) for key, array in extended.items())
    }


def _save(array: NDArray[Any], path: str) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _copy(source: str, path: str) -> None:
    shutil.copyfile(source, path)
