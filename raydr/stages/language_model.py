"""Verdicts of a language model on what an earlier judge is unsure of.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   as of other judges, on the rows alone that were asked about and answered
    answers/SPLIT/part-*.parquet    of all rows that were asked about: query_id, passage_id, truth, the earlier judge's
                                    ``action``, ``score`` and probability of the label being wrong (``wrong``); the
                                    model's ``answer`` in its own words, null if the server has refused the question,
                                    and its probability ``relevant``, null if that cannot be read

The questions are written by workers, asked by the process that runs the command (the key and the address are those of
its machine), and the answers are kept in the working folder, from where workers make verdicts of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.annotations import query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.errors import ConfigError, EndpointError
from raydr.noise.answers import Answers
from raydr.noise.chat import ChatServer, RefusedError
from raydr.noise.judges.base import ScoredCandidates
from raydr.noise.judges.language_model import LanguageModelJudge
from raydr.noise.questions import Reply, read_reply
from raydr.noise.verdict_report import summarize_verdicts, verdict_table
from raydr.runtime.cluster import STEP_THREAD
from raydr.runtime.console import progress_bar, show_summary, warn
from raydr.stages.given_verdicts import VERDICTS, open_earlier
from raydr.stages.parts import make_parts, scratch_parts, write_table
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building, Part
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of

#: Raised when the same settings lead to other parts.
VERSION = 1
#: Folder of the parts with what was answered.
ANSWERS = "answers"
T = TypeVar("T")
R = TypeVar("R")


def check_server(judge: LanguageModelJudge) -> None:
    """Ask one easy question, so that what is wrong is known before hours of other work.

    Raises:
        ConfigError: the variable that should hold the key is not set.
        EndpointError: nobody answers, the key or the model is wrong, or the answer cannot be read.
    """
    question = judge.question("capital of France", "", "The capital of France is Paris.")
    try:
        with _server(judge) as server:
            reply = read_reply(server.ask(question, patient=False))
    except RefusedError as error:
        raise EndpointError(
            f"judge {judge.name}: {error}. If it gives no probabilities of tokens, or calls max_tokens otherwise, the "
            "judge's request says so, for example {logprobs: null, top_logprobs: null}"
        ) from None
    except EndpointError as error:
        raise EndpointError(f"judge {judge.name}: {error}") from None
    if reply.relevant is None:
        raise EndpointError(
            f"judge {judge.name}: {judge.model} answers a test question by {reply.content!r}, expected yes or no. A "
            "model that thinks first needs more max_tokens, or to be told not to, in the judge's request"
        )
    if reply.probability is None:
        warn(f"judge {judge.name}: {judge.endpoint} gives no probabilities of tokens: yes counts as 1 and no as 0")


def ask_language_model(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    earlier: Artifact,
    *,
    judge: LanguageModelJudge,
    split: str,
    answers: Folder,
) -> dict[str, Any]:
    """Have a language model judge the rows of which an earlier judge is unsure.

    Args:
        making: the ``verdicts`` artefact.
        pool: where questions and verdicts are written.
        dataset, corpus: what was judged.
        earlier: the ``verdicts`` of the judge before.
        judge: whom to ask what.
        split: the split.
        answers: where answers are kept.

    Raises:
        EndpointError: the server is gone, or does not let this key in any more; answers until then are kept.
    """
    questions, kept = scratch_parts(making, "questions"), Answers(answers)
    names = earlier.parts(f"{VERDICTS}/{split}")
    if questions.done.keys() != set(names):
        found = (judge, split, earlier, Dataset(dataset), Corpus(corpus))
        questions.done.update(pool.run(_write_questions, questions.folder, *found))
    said = _ask(judge, questions, names, kept)
    make_parts(making, pool, _decide, dict.fromkeys(names, (questions.folder, judge, kept)), f"judge: {judge.name}")
    info: dict[str, Any] = {
        "judge": judge.name,
        "settings": judge.model_dump(mode="json"),
        "subject": judge.subject,
        "split": split,
        "after": judge.after,
        "asked": sum(part.rows for part in questions.done.values()),
        **{name: said.counts[name] for name in ("requests", "prompt_tokens", "completion_tokens")},
        **pool.run(_summarize, judge, making.folder, names),
    }
    _report(judge, info, said, earlier.rows(f"{VERDICTS}/{split}"))
    return info


def _write_questions(
    output: Folder, judge: LanguageModelJudge, split: str, earlier: Artifact, data: Dataset, corpus: Corpus
) -> dict[str, Part]:
    """Choose the rows and write them with their texts, a part for each part of the earlier verdicts."""
    tables, evidence_N = open_earlier(earlier, split).read()
    chosen, wrong_N = judge.choose(evidence_N), 1.0 / (1.0 + np.exp(-evidence_N))
    together = pa.concat_tables(tables.values())
    parts, start = {}, 0
    for name, table in tables.items():
        rows = chosen[(chosen >= start) & (chosen < start + len(table))]
        start += len(table)
        asked = together.take(pa.array(rows)).select(["query_id", "passage_id", "truth", "action", "score"])
        query_ids = asked["query_id"].to_pylist()
        passages = corpus.texts(corpus.rows_of(asked["passage_id"].to_pylist()))
        columns = {
            "wrong": pa.array(wrong_N[rows]),
            "query": pa.array(query_texts(data, split, query_ids), pa.string()),
            "title": pa.array(passages.titles, pa.string()),
            "text": pa.array(passages.texts, pa.string()),
        }
        for column, values in columns.items():
            asked = asked.append_column(column, values)
        parts[name] = write_table(output, name, asked)
    return parts


@dataclass
class _Said:
    """What came of the questions, each different one counted once.

    Args:
        counts: questions that were sent now (``requests``), whose answer cannot be read (``unreadable``), that were
            refused (``refused``), and tokens, those of answers that were there already included.
        examples: the first answer that cannot be read, the first refusal.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, answer: Reply | RefusedError, is_new: bool) -> None:
        trouble = ""
        if isinstance(answer, RefusedError):
            kind, trouble = "refused", str(answer)
        else:
            self.counts.update(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
            if answer.relevant is None:
                kind, trouble = "unreadable", repr(answer.content[:200])
        self.counts["requests"] += is_new
        if trouble:
            self.counts[kind] += 1
            self.examples.setdefault(kind, trouble)


def _ask(judge: LanguageModelJudge, questions: Building, names: Iterable[str], kept: Answers) -> _Said:
    """Ask what has no answer yet, some questions at a time; all answers are on disk when this returns."""
    said = _Said()
    total = sum(part.rows for part in questions.done.values())

    def answer(question: Mapping[str, Any]) -> tuple[Reply | RefusedError, bool]:
        there = kept.find(question)
        if there is not None:
            return there, False
        try:
            reply = read_reply(server.ask(question))
        except RefusedError as error:
            return error, True
        kept.keep(question, reply)
        return reply, True

    with _server(judge) as server, progress_bar(f"judge: {judge.name}", total, "questions") as bar:
        for found in _side_by_side(answer, _different(judge, questions.folder, names), judge.at_once):
            said.add(*found)
            bar.advance()
    return said


def _server(judge: LanguageModelJudge) -> ChatServer:
    key = os.environ.get(judge.key_variable, "") if judge.key_variable else ""
    if judge.key_variable and not key:
        raise ConfigError(
            f"judge {judge.name}: the environment variable {judge.key_variable} is not set here, and key_variable says "
            f"that it holds the key of {judge.endpoint}: set it, or leave key_variable out if the server wants none"
        )
    return ChatServer(judge.endpoint, key, judge.timeout_s, judge.max_retries, judge.at_once, warn)


def _different(judge: LanguageModelJudge, folder: Folder, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The questions of all parts, each once."""
    seen: set[str] = set()
    for name in names:
        for question in _questions(judge, read_parquet(folder.localize(name))):
            digest = fingerprint_of(question)
            if digest not in seen:
                seen.add(digest)
                yield question


def _questions(judge: LanguageModelJudge, asked: pa.Table) -> Iterator[dict[str, Any]]:
    columns = (asked[name].to_pylist() for name in ("query", "title", "text"))
    return (judge.question(*texts) for texts in zip(*columns, strict=True))


def _side_by_side(do: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[R]:
    """Results as they come; of the items only a few are taken at a time."""
    # Named so that Ctrl-C does not wait for answers that are under way.
    threads = ThreadPoolExecutor(at_once, thread_name_prefix=STEP_THREAD)
    pending: set[Future[R]] = set()
    try:
        for item in items:
            pending.add(threads.submit(do, item))
            if len(pending) >= 2 * at_once:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        yield from (one.result() for one in pending)
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()


def _decide(
    output: Folder, name: str, questions: Folder, judge: LanguageModelJudge, kept: Answers
) -> Mapping[str, Part]:
    """Verdicts on one part of what was asked about, from the answers that were kept."""
    asked = read_parquet(questions.localize(name))
    replies = [kept.find(question) for question in _questions(judge, asked)]
    relevant = pa.array([None if one is None else one.relevant for one in replies], pa.float64())
    said = asked.drop_columns(["query", "title", "text"])
    said = said.append_column("answer", pa.array([one.content if one else None for one in replies], pa.string()))
    said = said.append_column("relevant", relevant)
    beside = name.replace(f"{VERDICTS}/", f"{ANSWERS}/", 1)
    parts = {beside: write_table(output, beside, said)}
    read = asked.filter(pc.is_valid(relevant))
    query_ids, passage_ids, truth = (read[column].to_pylist() for column in ("query_id", "passage_id", "truth"))
    verdicts = judge.judge(ScoredCandidates(relevant.drop_null().to_numpy(), np.arange(len(read) + 1)))
    # The verdicts last: a resume makes both again unless they are there.
    return parts | {name: write_table(output, name, verdict_table(judge, query_ids, passage_ids, verdicts, truth))}


def _summarize(judge: LanguageModelJudge, folder: Folder, names: Iterable[str]) -> dict[str, Any]:
    return summarize_verdicts(judge, (read_parquet(folder.localize(name)) for name in names))


def _report(judge: LanguageModelJudge, info: Mapping[str, Any], said: _Said, num_earlier: int) -> None:
    of_tokens = f"{info['prompt_tokens']:,} read, {info['completion_tokens']:,} written"
    facts = {
        "asked about": f"{info['asked']:,} of the {num_earlier:,} that {judge.after} has judged",
        "answered": f"{info['verdicts']:,}",
        "requests sent now": f"{info['requests']:,}",
        "tokens of all answers": of_tokens,
        **{action: f"{info[action]:,}" for action in ("keep", "drop", "relabel")},
    }
    known = info.get("detection", {})
    facts |= {name: f"{known[name]:.3f}" for name in ("precision", "recall") if known.get(name) is not None}
    show_summary(f"verdicts of {judge.name} ({judge.model}) on {info['split']}", facts)
    if not info["asked"]:
        low, high = judge.unsure
        warn(f"{judge.after} is sure of everything: no label is wrong with a probability of {low:g} to {high:g}")
    for kind, words in (("unreadable", "answers are neither yes nor no"), ("refused", "questions were refused")):
        if said.counts[kind]:
            example = f"the first: {said.examples[kind]}"
            warn(f"judge {judge.name}: {said.counts[kind]:,} {words}, {example}. {judge.after}'s verdict stays there")
