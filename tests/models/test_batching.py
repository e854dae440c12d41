"""Batches by token budget, and padding."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydr.models.batching import move, pad, pad_in_groups, plan_batches, plan_groups
from raydr.models.tokens import Tokens
from tests.made import tokens_from_lists


def test_a_tensor_that_is_on_its_device_stays_as_it_is():
    """Only host memory can be pinned: ``meta`` stands for a GPU here."""
    meta, here = torch.device("meta"), torch.zeros(3, dtype=torch.int64)
    there = move(here, meta)
    assert there.device.type == "meta"
    assert move(there, meta) is there
    assert move(here, torch.device("cpu")) is here


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 300))
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget):
    array = np.array(lengths)
    batches = plan_batches(array, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or array[rows].max() * len(rows) <= budget


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=12), st.randoms())
def test_padding_keeps_every_token_in_its_place(rows, random):
    tokens = tokens_from_lists(rows)
    chosen = np.array([random.randrange(len(rows)) for _ in range(5)])
    batch = pad(tokens, chosen, pad_id=0)
    for at, row in enumerate(chosen):
        length = len(rows[row])
        assert batch["input_ids"][at, :length].tolist() == rows[row]
        assert batch["input_ids"][at, length:].sum() == 0
        assert batch["attention_mask"][at].sum() == length
    assert batch["token_type_ids"].sum() == 0


def test_segments_are_marked():
    tokens = Tokens(np.arange(1, 7, dtype=np.int32), np.array([0, 4, 6]), np.array([2, 2], dtype=np.int32))
    batch = pad(tokens, np.array([0, 1]), pad_id=0)
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_tokens_travel_unchanged():
    tokens = tokens_from_lists([[1, 2, 3], [4]])
    again = Tokens.from_arrow(tokens.to_arrow())
    assert np.array_equal(again.ids, tokens.ids)
    assert np.array_equal(again.offsets, tokens.offsets)


def cost_of(lengths, cuts, overhead):
    """What groups of the sorted lengths cost, cut before the given positions."""
    bounds = [0, *cuts, len(lengths)]
    ordered = sorted(lengths, reverse=True)
    return sum(ordered[left] * (right - left) + overhead for left, right in itertools.pairwise(bounds))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 60))
def test_no_other_cut_into_groups_costs_less(lengths, overhead):
    groups = plan_groups(np.array(lengths), overhead)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    cost = sum(max(lengths[at] for at in rows) * len(rows) + overhead for rows in groups)
    places = range(1, len(lengths))
    every_cut = (cuts for number in range(len(lengths)) for cuts in itertools.combinations(places, number))
    assert cost == min(cost_of(lengths, cuts, overhead) for cuts in every_cut)


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=12), st.integers(0, 20))
def test_groups_hold_every_text_at_its_place(rows, overhead):
    batch = pad_in_groups(tokens_from_lists(rows), pad_id=0, overhead=overhead)
    token_lists = [
        ids[mask.bool()].tolist()
        for group in batch.groups
        for ids, mask in zip(group["input_ids"], group["attention_mask"], strict=True)
    ]
    assert [token_lists[at] for at in batch.places_N.tolist()] == rows
    assert batch.to(torch.device("cpu")) is batch
