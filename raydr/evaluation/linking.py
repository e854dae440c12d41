"""Entity linking: accuracies, and any measure by groups of queries: worlds and categories.

A query's *partition* is its world. Of N queries, of which N_w are of world w, and v_q a query's value:

- micro = Σ_q v_q / N;  macro = Σ_w (Σ_{q in w} v_q / N_w) / W, the mean of the W worlds' means;
- accuracy, *unnormalised*: v_q = 1 if the first passage is relevant, over all queries; *normalised*: over those queries
  of which a relevant passage is among the candidates, the first ``depth``. So unnormalised ≤ recall@depth, and within a
  world unnormalised = normalised · recall.

Source: Logeswaran et al. (ACL 2019); Zhang and Stratos (NAACL 2021), §6. A world none of whose queries has a relevant
candidate has no normalised accuracy, and is left out of its macro mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ACCURACY, MACRO_ACCURACY = "accuracy", "accuracy, macro"
#: The columns of queries that measures are grouped by; the first is that of the macro means.
GROUPINGS = ("partition", "category")
#: query id → value.
Values = Mapping[str, float]


@dataclass(frozen=True)
class GroupMean:
    """The mean of a measure over a group of queries.

    ``grouping`` is one of :data:`GROUPINGS` and ``group`` the partition or category; or ``grouping`` is ``all``, and
    ``group`` is ``micro`` or ``macro``.
    """

    system: str
    measure: str
    grouping: str
    group: str
    mean: float
    num_queries: int


def linking_measures(depth: int) -> list[str]:
    """Return the measures behind accuracies, in ir-measures' notation: success at 1, and among the candidates.

    >>> linking_measures(64)
    ['Success@1', 'Success@64']
    """
    return ["Success@1", f"Success@{depth}"]


def accuracies(first: Values, worlds: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Compute unnormalised accuracy, and values whose mean over all queries is its macro mean: v_q · N / (W · N_w).

    Args:
        first: whether each query's first passage is relevant.
        worlds: of the queries; without any there is no macro mean.

    >>> accuracies({"a": 1.0, "b": 0.0, "c": 1.0}, {"a": "x", "b": "x", "c": "y"})["accuracy, macro"]
    {'a': 0.75, 'b': 0.0, 'c': 1.5}
    """
    accuracies = {ACCURACY: dict(first)}
    if not worlds:
        return accuracies
    sizes = Counter(worlds[query_id] for query_id in first)
    weight = {world: len(first) / (len(sizes) * size) for world, size in sizes.items()}
    return accuracies | {
        MACRO_ACCURACY: {query_id: value * weight[worlds[query_id]] for query_id, value in first.items()}
    }


def normalised(first: Values, among: Values, depth: int) -> dict[str, dict[str, float]]:
    """Compute accuracy over the queries with a relevant candidate.

    >>> normalised({"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 1.0, "b": 0.0, "c": 1.0}, 64)
    {'accuracy, normalised (top 64)': {'a': 1.0, 'c': 0.0}}
    """
    return {
        f"accuracy, normalised (top {depth})": {query_id: value for query_id, value in first.items() if among[query_id]}
    }


def group_means(
    system: str, measures: Mapping[str, Values], groups: Mapping[str, Mapping[str, str]]
) -> Iterable[GroupMean]:
    """Compute means of a system's measures: micro, macro over the first grouping, and of every group.

    Args:
        system: its name.
        measures: the values, by measure; each may be defined on queries of its own.
        groups: grouping → query id → group; no means are taken where it is empty.
    """
    for measure, values in measures.items():
        if not groups or not values or measure == MACRO_ACCURACY:
            continue
        yield GroupMean(system, measure, "all", "micro", sum(values.values()) / len(values), len(values))
        for grouping, group_of in groups.items():
            members: dict[str, list[float]] = defaultdict(list)
            for query_id, value in values.items():
                members[group_of[query_id]].append(value)
            means = {group: sum(own) / len(own) for group, own in sorted(members.items())}
            if grouping == GROUPINGS[0]:
                macro = sum(means.values()) / len(means)
                yield GroupMean(system, measure, "all", "macro", macro, len(values))
            for group, mean in means.items():
                yield GroupMean(system, measure, grouping, group, mean, len(members[group]))
