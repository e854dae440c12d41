"""Second positives cut anew from the article of the judged passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from experiments.second_positives.judged import Judged, Passage, SecondPositive
from raydr.evaluation.answer_match import AnswerMatcher
from raydr.seeding import query_rng

#: The answer stands at least so many words away from where the judged passage was cut, so that its sentence is there.
CONTEXT_WORDS = 10

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)

#: Looks passages up by id; those that the corpus has not are left out.
Lookup = Callable[[Sequence[str]], Mapping[str, Passage]]


def neighbour_ids(passage_id: str, step: int) -> list[str]:
    """Ids that the passage before (step −1) or after (+1) may have: the number at the end counts on.

    >>> neighbour_ids("AA_wiki_00#9", 1), neighbour_ids("p010", -1), neighbour_ids("0", -1), neighbour_ids("a", 1)
    (['AA_wiki_00#10'], ['p9', 'p009'], [], [])
    """
    found = _NUMBERED.fullmatch(passage_id)
    if found is None or int(found[2]) + step < 0:
        return []
    number = str(int(found[2]) + step)
    return list(dict.fromkeys(found[1] + written for written in (number, number.zfill(len(found[2])))))


def recut(
    judged: Judged, lookup: Lookup, shift: tuple[int, int], seed: int
) -> tuple[list[Passage], list[SecondPositive]]:
    """New passages from the text of a judged passage and of the one next to it in the same article.

    Of passage words w_1 … w_n and a shift s the new passage is w_{s+1} … w_n and the first s words of the next passage,
    or the last s words of the one before and w_1 … w_{n−s}. Direction and s are drawn for the query among those that
    keep at least half of the judged passage, with the answer in what is kept and :data:`CONTEXT_WORDS` away from the
    cut. Passages are next to each other if they have the same title and ids that count on.

    A new passage is a second positive of every query whose judged passage gave words to it and whose answer is in
    these words, not only of the query that it was cut for.

    Args:
        judged: the training queries; those without a matcher get none.
        lookup: gives passages by id.
        shift: least and most words to shift by.
        seed: with the query id decides how it is cut.

    Returns:
        The new passages, sorted by id, and the second positives, sorted by query and passage id.
    """
    golds = lookup(sorted({one for query_id in judged.matchers for one in judged.positives[query_id]}))
    sides = {step: lookup(sorted({near for one in golds for near in neighbour_ids(one, step)})) for step in (-1, 1)}
    cuts: dict[str, _Cut] = {}
    for query_id in sorted(judged.matchers):
        for passage_id in judged.positives[query_id]:
            gold = golds[passage_id]
            near = {step: _neighbour(gold, step, sides[step]) for step in (-1, 1)}
            cut = _cut(query_id, gold, near, judged.matchers[query_id], shift, seed)
            if cut is not None:
                cuts[cut.new.passage_id] = cut
    queries_of = judged.queries_of({one for cut in cuts.values() for one in cut.kept})
    rows = {
        SecondPositive(query_id, cut.new.passage_id, "recut", cut.made_from, cut.shift)
        for cut in cuts.values()
        for source, text in cut.kept.items()
        for query_id in queries_of[source]
        if query_id in judged.matchers and judged.matchers[query_id].matches(text)
    }
    return [cuts[one].new for one in sorted(cuts)], sorted(rows, key=SecondPositive.order)


class _Cut:
    """A new passage, and what is kept of each passage it was cut from, without the words next to a cut."""

    def __init__(self, gold: Passage, near: Passage, step: int, size: int) -> None:
        words, others = gold.text.split(), near.text.split()
        if step > 0:
            kept, added = words[size:], others[:size]
            inner = words[size + CONTEXT_WORDS :], others[: max(size - CONTEXT_WORDS, 0)]
            text = " ".join(kept + added)
        else:
            kept, added = words[: len(words) - size], others[len(others) - size :]
            inner = words[: max(len(words) - size - CONTEXT_WORDS, 0)], added[CONTEXT_WORDS:]
            text = " ".join(added + kept)
        self.shift = step * size
        self.new = Passage(f"{gold.passage_id}{self.shift:+d}", gold.title, text)
        self.made_from = (gold.passage_id, near.passage_id)
        self.kept = {one: " ".join(part) for one, part in zip(self.made_from, inner, strict=True)}


def _neighbour(gold: Passage, step: int, found: Mapping[str, Passage]) -> Passage | None:
    for passage_id in neighbour_ids(gold.passage_id, step):
        near = found.get(passage_id)
        if near is not None and near.title and near.title == gold.title:
            return near
    return None


def _cut(
    query_id: str,
    gold: Passage,
    near: Mapping[int, Passage | None],
    matcher: AnswerMatcher,
    shift: tuple[int, int],
    seed: int,
) -> _Cut | None:
    """The first cut, in the order drawn for the query, that keeps the answer."""
    most = min(shift[1], len(gold.text.split()) // 2)
    options = [
        (passage, step, size)
        for step, passage in sorted(near.items())
        if passage is not None
        for size in range(shift[0], min(most, len(passage.text.split())) + 1)
    ]
    order = query_rng(seed, 0, query_id, f"recut {gold.passage_id}").permutation(len(options))
    for at in order.tolist():
        passage, step, size = options[at]
        cut = _Cut(gold, passage, step, size)
        if matcher.matches(cut.kept[gold.passage_id]):
            return cut
    return None
