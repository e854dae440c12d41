"""Second positives that the corpus has already: other passages of the article that contain the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from experiments.second_positives.judged import Judged, Passage, SecondPositive, hashes_of
from raydr.data.corpus import hash_content
from raydr.evaluation.answer_match import tokenize

#: A passage that shares more of the positive's runs of five words is a copy of it in another cut.
MAX_SHARED = 0.8
_RUN = 5
#: Words of questions that say nothing of what is asked for; words of up to three letters are left out anyway.
_FUNCTION_WORDS = frozenset(
    {
        *("what", "when", "where", "which", "whose", "whom", "does", "have", "been", "were", "that", "this", "these"),
        *("those", "with", "from", "into", "about", "than", "then", "they", "their", "there", "many", "much", "most"),
        *("more", "some", "such", "only", "also", "after", "before", "between", "during", "would", "could", "should"),
        *("will", "name", "called", "used"),
    }
)


def find_answers(
    judged: Judged,
    questions: Mapping[str, str],
    golds: Mapping[str, Passage],
    parts: Iterable[pa.Table],
    min_overlap: float,
) -> list[SecondPositive]:
    """Passages with the title of a query's positive, one of its answers, and part of the question's words.

    A passage may contain an answer by chance, above all a short one (a number, "third"); the question's words make it
    likelier that it answers the question. They are compared by their first five letters, without those of the
    title. Passages that are judged for the query, copies of its positives, and those that share
    more than :data:`MAX_SHARED` of the words with one are left out.

    Args:
        judged: the training queries; those without a matcher get none.
        questions: the text of each query.
        golds: the positives by id.
        parts: the corpus, part by part; only rows with a title that is looked for are read.
        min_overlap: least share of the question's words that the passage has; 0 is DPR's rule, the answer alone.

    Returns:
        Sorted by query and passage id.
    """
    wanted: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for query_id in sorted(judged.matchers):
        for passage_id in judged.positives[query_id]:
            title = golds[passage_id].title
            if title:
                wanted[title].setdefault(query_id, passage_id)
    contents = {
        query_id: set(hashes_of([golds[one] for one in judged.positives[query_id]])) for query_id in judged.matchers
    }
    titles = pa.array(sorted(wanted), type=pa.string())
    rows: list[SecondPositive] = []
    for part in parts:
        found = part.filter(pc.is_in(part["title"], value_set=titles))
        contents_of_part = hash_content(found["title"], found["text"]).tolist()
        for row, content in zip(found.to_pylist(), contents_of_part, strict=True):
            for query_id, gold in wanted[row["title"]].items():
                known = row["passage_id"] in judged.judged[query_id] or content in contents[query_id]
                if (
                    not known
                    and judged.matchers[query_id].matches(row["text"])
                    and _overlap(questions[query_id], row["title"], row["text"]) >= min_overlap
                    and _shared(golds[gold].text, row["text"]) <= MAX_SHARED
                ):
                    rows.append(SecondPositive(query_id, row["passage_id"], "answer", (gold,)))
    return sorted(rows, key=SecondPositive.order)


def _overlap(question: str, title: str, text: str) -> float:
    """Share of the question's content words, the title's left out, that the text has; 0 if there are none.

    >>> _overlap("When did the Rhine begin to warm up?", "Rhine", "Europe began to warm, and to warm up slowly.")
    0.5
    """
    wanted = _stems(question) - _stems(title)
    return len(wanted & _stems(text)) / len(wanted) if wanted else 0.0


def _stems(text: str) -> set[str]:
    words = (word for word in tokenize(text) if len(word) > 3 and word not in _FUNCTION_WORDS)
    return {word[:5] for word in words}


def _shared(one: str, other: str) -> float:
    """Share of the runs of five words of the shorter text that the other has."""
    runs = [
        {tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1)} for words in map(tokenize, (one, other))
    ]
    shorter = min(map(len, runs))
    return len(runs[0] & runs[1]) / shorter if shorter else 0.0
