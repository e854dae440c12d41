"""Accuracies of entity linking against the authors' definitions, written out as loops."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.evaluation.linking import MACRO_ACCURACY, accuracies, group_means, normalised

DEPTH = 64


def reference(ranks: dict[str, int | None], worlds: dict[str, str]) -> dict[tuple[str, str], float]:
    """A world at a time: right, retrieved and all mentions are counted; macro is the mean of the worlds' figures."""
    right, retrieved, total = (dict.fromkeys(worlds.values(), 0) for _ in range(3))
    for mention, rank in ranks.items():
        total[worlds[mention]] += 1
        if rank is not None and rank <= DEPTH:
            retrieved[worlds[mention]] += 1
        if rank == 1:
            right[worlds[mention]] += 1
    with_candidates = [world for world in total if retrieved[world]]
    return {
        ("unnormalised", "micro"): sum(right.values()) / sum(total.values()),
        ("unnormalised", "macro"): sum(right[world] / total[world] for world in total) / len(total),
        ("normalised", "micro"): sum(right.values()) / sum(retrieved.values()),
        ("normalised", "macro"): sum(right[world] / retrieved[world] for world in with_candidates)
        / len(with_candidates),
    }


@pytest.mark.invariant
@pytest.mark.parametrize("seed", range(5))
def test_accuracies_are_those_of_the_authors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"m{at}" for at in range(200)]
    # Worlds of very different size; in the last one nothing is retrieved.
    worlds = {name: f"w{int(rng.geometric(0.4))}" for name in names} | {"m0": "lost", "m1": "lost"}
    drawn = rng.choice([1, 2, 40, 64, 65, 0], size=200).tolist()
    ranks = {name: rank or None for name, rank in zip(names, drawn, strict=True)} | {"m0": None, "m1": 70}
    first = {name: float(rank == 1) for name, rank in ranks.items()}
    among = {name: float(rank is not None and rank <= DEPTH) for name, rank in ranks.items()}
    unnormalised = accuracies(first, worlds)
    measures = {
        "unnormalised": unnormalised["accuracy"],
        "normalised": next(iter(normalised(first, among, DEPTH).values())),
    }
    means = {(group.measure, group.group): group.mean for group in group_means("s", measures, {"partition": worlds})}
    expected = reference(ranks, worlds)
    assert {key: means[key] for key in expected} == pytest.approx(expected)
    assert np.mean(list(unnormalised[MACRO_ACCURACY].values())) == pytest.approx(expected["unnormalised", "macro"])
    for world in set(worlds.values()) - {"lost"}:
        own = [name for name in names if worlds[name] == world]
        recall = np.mean([among[name] for name in own])
        assert means["unnormalised", world] == pytest.approx(means.get(("normalised", world), 0.0) * recall)
    assert ("normalised", "lost") not in means


def test_categories_have_no_macro_mean_and_queries_without_groups_none_at_all() -> None:
    values = {"a": 1.0, "b": 0.0, "c": 1.0}
    rows = list(group_means("s", {"R@1": values}, {"category": {"a": "x", "b": "x", "c": "y"}}))
    assert [(row.group, row.mean, row.num_queries) for row in rows] == [("micro", 2 / 3, 3), ("x", 0.5, 2), ("y", 1, 1)]
    assert not list(group_means("s", {"R@1": values}, {}))
    assert MACRO_ACCURACY not in accuracies(values, {})
