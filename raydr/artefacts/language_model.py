"""Verdicts of a language model on doubtful verdicts of an earlier judge.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   as of other judges, only on the rows with an answer
    answers/SPLIT/part-*.parquet    of all rows that were asked about: query_id, passage_id, truth, the earlier judge's
                                    ``action``, ``score`` and P(wrong label) (``wrong``); the text of
                                    the ``answer``, null if the server rejected the question,
                                    and its P(relevant) (``relevant``), null if the answer is neither yes nor no

A worker selects the rows. The process of the command asks the server (with its machine's key and address), stores
answers in the working folder, and makes verdicts of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_data
from raydr.artefacts.judged import VERDICTS, open_earlier
from raydr.artefacts.verdicts import report_verdicts
from raydr.component import Neutral
from raydr.console import progress_bar, say, warn
from raydr.data import Corpus, Dataset
from raydr.data.dataset import query_texts
from raydr.distributed.cluster import STEP_THREAD
from raydr.distributed.parts import write_table
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, EndpointError
from raydr.noise.answers import RefusedError, Reply, open_answers
from raydr.noise.judges.base import Judge, ScoredCandidates
from raydr.noise.judges.language_model import LanguageModelJudge
from raydr.noise.verdict_report import summarize_verdicts, verdict_table
from raydr.store import Artifact, Building, Folder
from raydr.store.identity import fingerprint_of

if TYPE_CHECKING:
    from raydr.noise.chat import ChatServer

#: Folder of the parts with answers.
ANSWERS = "answers"
_PAIR = ["query_id", "passage_id", "truth"]
#: Body of a request.
Question = dict[str, Any]
Replies = dict[str, Reply | RefusedError]


def check_server(judge: LanguageModelJudge) -> None:
    """Ask a test question, so that errors appear before hours of other work.

    Raises:
        ConfigError: the key's variable is not set, or the package openai is not installed.
        EndpointError: no server answers, the key or model is wrong, or the answer is invalid.
    """
    question = judge.question("capital of France", "", "The capital of France is Paris.")
    try:
        reply = _ask(judge, {"": question}, max_retries=0)[""]
    except EndpointError as error:
        raise EndpointError(f"judge {judge.name}: {error}") from None
    if isinstance(reply, RefusedError):
        raise EndpointError(
            f"judge {judge.name}: {reply}. If the server gives no token probabilities, or names max_tokens "
            "differently, set the judge's request, for example {logprobs: null, top_logprobs: null}"
        )
    if reply.relevant is None:
        raise EndpointError(
            f"judge {judge.name}: {judge.model} answers a test question by {reply.content!r}, expected yes or no. For "
            "a model that reasons, raise max_tokens or turn off reasoning in the judge's request"
        )
    if reply.probability is None:
        warn(f"judge {judge.name}: {judge.endpoint} gives no token probabilities: yes counts as 1 and no as 0")


def asked_verdicts(context: Context, judge: Judge, split: str, earlier: Node) -> Node:
    """Return the node of a language model's verdicts on doubtful verdicts.

    Args:
        context: config.
        judge: judge with server and prompt.
        split: judged split.
        earlier: verdicts of the earlier judge.

    Raises:
        ConfigError: no model is set.
        TypeError: the judge has no prompt.
    """
    if not isinstance(judge, LanguageModelJudge):
        raise TypeError(f"judge {judge.name} asks a server: derive it from LanguageModelJudge")
    judge.require_model()
    return ask_language_model.node(
        f"{context.place}judge-{judge.name}-{split}",
        **declare_data(context),
        earlier=earlier,
        judge=judge,
        split=split,
        answers=context.facts.places.root / ANSWERS,
        check=partial(check_server, judge),
    )


@artefact("verdicts", rows=lambda of: of.earlier.rows(f"{VERDICTS}/{of.split}"))
def ask_language_model(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    earlier: Artifact,
    *,
    judge: LanguageModelJudge,
    split: str,
    answers: Annotated[Folder, Neutral],
) -> dict[str, Any]:
    """Have a language model judge the doubtful rows of an earlier judge.

    Args:
        making: ``verdicts`` artefact to make.
        pool: pool that selects the rows.
        dataset, corpus: judged data.
        earlier: ``verdicts`` of the earlier judge.
        judge: judge with server and prompt.
        split: judged split.
        answers: folder of stored answers.

    Raises:
        EndpointError: the server is gone or rejects the key; received answers are kept.
    """
    doubtful = pool.run(_rows_in_doubt, judge, split, earlier, Dataset(dataset), Corpus(corpus))
    questions = {fingerprint_of(body): body for _, bodies in doubtful.values() for body in bodies}
    with open_answers(answers) as kept:
        replies: Replies = {digest: reply for digest in questions if (reply := kept.find(digest)) is not None}
        todo = {digest: body for digest, body in questions.items() if digest not in replies}
        with progress_bar(f"judge: {judge.name}", len(todo), "questions") as bar:

            def keep(digest: str, reply: Reply) -> None:
                kept.keep(digest, reply)
                bar.advance()

            replies |= _ask(judge, todo, judge.max_retries, keep)
    decided = [_decide(making, name, judge, rows, bodies, replies) for name, (rows, bodies) in doubtful.items()]
    answered = [reply for reply in replies.values() if isinstance(reply, Reply)]
    info: dict[str, Any] = {
        "judge": judge.name,
        "settings": judge.model_dump(mode="json"),
        "subject": judge.subject,
        "split": split,
        "after": judge.after,
        "before": earlier.rows(f"{VERDICTS}/{split}"),
        "asked": sum(len(rows) for rows, _ in doubtful.values()),
        "requests": len(todo),
        "prompt_tokens": sum(reply.prompt_tokens for reply in answered),
        "completion_tokens": sum(reply.completion_tokens for reply in answered),
        **summarize_verdicts(judge, decided),
    }
    _report(judge, info, replies)
    return info


def _rows_in_doubt(
    judge: LanguageModelJudge, split: str, earlier: Artifact, data: Dataset, corpus: Corpus
) -> dict[str, tuple[pa.Table, list[Question]]]:
    """Return the selected rows and their questions, by part of the earlier verdicts."""
    tables, evidence_N = open_earlier(earlier, split).read()
    chosen, wrong_N = judge.choose(evidence_N), 1.0 / (1.0 + np.exp(-evidence_N))
    together = pa.concat_tables(tables.values()).append_column("wrong", pa.array(wrong_N))
    parts, start = {}, 0
    for name, table in tables.items():
        rows = chosen[(chosen >= start) & (chosen < start + len(table))]
        start += len(table)
        doubtful = together.take(pa.array(rows)).select([*_PAIR, "action", "score", "wrong"])
        passages = corpus.texts(corpus.rows_of(doubtful["passage_id"].to_pylist()))
        queries = query_texts(data, split, doubtful["query_id"].to_pylist())
        asked = zip(queries, passages.titles, passages.texts, strict=True)
        parts[name] = doubtful, [judge.question(*texts) for texts in asked]
    return parts


def _ask(
    judge: LanguageModelJudge,
    questions: Mapping[str, Question],
    max_retries: int,
    keep: Callable[[str, Reply], None] = lambda digest, reply: None,
) -> Replies:
    """Ask ``at_once`` questions concurrently.

    Args:
        judge: judge with server and prompt.
        questions: questions by their hashes.
        max_retries: retries of each question.
        keep: receives each answer, in another thread.
    """
    todo, replies = iter(questions.items()), Replies()

    async def ask_on(server: ChatServer) -> None:
        for digest, question in todo:
            try:
                replies[digest] = reply = await server.ask(question)
                keep(digest, reply)
            except RefusedError as error:
                replies[digest] = error

    async def ask_all() -> None:
        async with _server(judge, max_retries) as server:
            await asyncio.gather(*(ask_on(server) for _ in range(judge.at_once)))

    # A separate thread, since a notebook's thread already runs a loop. Ctrl-C does not wait for it.
    thread = ThreadPoolExecutor(1, thread_name_prefix=STEP_THREAD)
    try:
        thread.submit(asyncio.run, ask_all()).result()
    finally:
        thread.shutdown(wait=False)
    return replies


def _server(judge: LanguageModelJudge, max_retries: int) -> ChatServer:
    key = os.environ.get(judge.key_variable, "") if judge.key_variable else ""
    if judge.key_variable and not key:
        raise ConfigError(
            f"judge {judge.name}: the environment variable {judge.key_variable}, which key_variable names for the key "
            f"of {judge.endpoint}, is not set: set it, or leave key_variable out if the server needs no key"
        )
    try:
        from raydr.noise.chat import ChatServer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"judge {judge.name} needs the package {error.name} for its server: pip install openai, or raydr with the "
            "extra openai; or let workers load the model (checkpoint)"
        ) from None
    return ChatServer(judge.endpoint, key, judge.timeout_s, max_retries, warn)


def _decide(
    making: Building,
    name: str,
    judge: LanguageModelJudge,
    doubtful: pa.Table,
    questions: list[Question],
    replies: Replies,
) -> pa.Table:
    """Write the answers on a part of the rows, and their verdicts."""
    answered = [replies[fingerprint_of(question)] for question in questions]
    answers = [reply if isinstance(reply, Reply) else None for reply in answered]
    relevant = pa.array([reply and reply.relevant for reply in answers], pa.float64())
    content = pa.array([reply and reply.content for reply in answers], pa.string())
    read = doubtful.filter(pc.is_valid(relevant))
    verdicts = judge.judge(ScoredCandidates(relevant.drop_null().to_numpy(), np.arange(len(read) + 1)))
    query_ids, passage_ids, truth = (read[column].to_pylist() for column in _PAIR)
    tables = {
        name.replace(f"{VERDICTS}/", f"{ANSWERS}/", 1): doubtful.append_column("answer", content).append_column(
            "relevant", relevant
        ),
        name: verdict_table(judge, query_ids, passage_ids, verdicts, truth),
    }
    making.done.update({part: write_table(making.folder, part, table) for part, table in tables.items()})
    return tables[name]


def _report(judge: LanguageModelJudge, info: Mapping[str, Any], replies: Replies) -> None:
    report_verdicts(judge, info)
    say(
        f"{info['asked']:,} rows in doubt; {info['requests']:,} requests sent to {judge.model} now; tokens of all "
        f"answers: {info['prompt_tokens']:,} in, {info['completion_tokens']:,} out"
    )
    answered = (reply for reply in replies.values() if isinstance(reply, Reply))
    unread = [repr(reply.content[:200]) for reply in answered if reply.relevant is None]
    refused = [str(reply) for reply in replies.values() if isinstance(reply, RefusedError)]
    for trouble, words in ((unread, "answers are neither yes nor no"), (refused, "questions were rejected")):
        if trouble:
            example = f"{len(trouble):,} {words}, the first: {trouble[0]}"
            warn(f"judge {judge.name}: {example}. The verdicts of {judge.after} stand there")
