"""Entity linking: accuracies, and measures by group of queries (world or category).

A query's *partition* is its world. With N queries, N_w of them in world w, and a query's value v_q:

- micro = Σ_q v_q / N;  macro = Σ_w (Σ_{q in w} v_q / N_w) / W, the mean of the W worlds' means;
- accuracy, *unnormalised*: v_q = 1 if the first passage is relevant, over all queries; *normalised*: over the queries
  with a relevant passage among the candidates, the first ``depth``. So unnormalised ≤ recall@depth, and within a world
  unnormalised = normalised · recall.

Source: Logeswaran et al. (ACL 2019); Zhang and Stratos (NAACL 2021), §6. A world without relevant candidates has no
normalised accuracy, and does not count in the macro mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ACCURACY, MACRO_ACCURACY = "accuracy", "accuracy, macro"
#: Query columns that group measures; the first defines macro means.
GROUPINGS = ("partition", "category")
#: query id → value.
Values = Mapping[str, float]


@dataclass(frozen=True)
class GroupMean:
    """Mean of a measure over a group of queries.

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
        worlds: world of each query; without worlds there is no macro mean.

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
    """Compute a system's means: micro, macro over the first grouping, and for each group.

    Args:
        system: name of the system.
        measures: values by measure, each on its own queries.
        groups: grouping → query id → group; may be empty.
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
