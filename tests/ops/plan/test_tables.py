"""A plan survives its file, is priced, and is compared with what was taken."""

from __future__ import annotations

import json
from dataclasses import replace

from raydr.config.plan import Prices
from raydr.graph.forecast import Forecast, StageEstimate
from raydr.graph.stage_times import StageTime
from raydr.ops.plan.tables import compare, plan_rows

TRAIN = StageEstimate("train", "10 queries", 7200, 4, 2, 2**31, 2**30, 3 * 2**30, "0.1 s a step")
INDEX = StageEstimate("index", "10 passages", 10, 1, 0, None, 2**20)
PLAN = Forecast((TRAIN, INDEX), 10, "an H100", "prepare")


def test_a_plan_survives_its_file():
    assert Forecast.from_json(json.loads(json.dumps(PLAN.as_json()))) == PLAN


def test_money_is_hours_held_times_prices():
    assert PLAN.gpu_hours() == 4
    assert PLAN.cost(Prices()) is None
    assert PLAN.cost(Prices(gpu_hour=3)) == 12
    assert PLAN.cost(Prices(gpu_hour=3, cpu_hour=0.5)) == 12 + 4 + 10 * 0.5 / 3600
    columns, rows = plan_rows(PLAN, Prices(gpu_hour=3))
    assert dict(zip(columns, rows[0], strict=True))["USD"] == "12.00"
    assert [row[columns.index("GiB sent")] for row in rows] == ["3", ""]
    assert "USD" not in plan_rows(PLAN, Prices())[0]


def test_what_did_not_run_or_was_interrupted_has_no_ratio():
    rows = compare(PLAN, [StageTime(stage="train", seconds=3600)])[1]
    assert rows == [["train", "2 h 00 min", "1 h 00 min", "0.50"], ["index", "10.0 s", "not run", ""]]
    assert compare(PLAN, [StageTime(stage="train", seconds=60, num_parts_before=3)])[1][0] == [
        "train",
        "2 h 00 min",
        "1 min 00 s, resumed",
        "",
    ]


def test_arms_have_stages_of_the_same_name():
    both = Forecast((replace(INDEX, key="b"), replace(INDEX, key="a"), replace(INDEX, key="c")), 10, "", "")
    taken = [StageTime(stage="index", seconds=5, key="a"), StageTime(stage="index", seconds=6, key="b")]
    assert [row[2] for row in compare(both, taken)[1]] == ["6.0 s", "5.0 s", "not run"]
