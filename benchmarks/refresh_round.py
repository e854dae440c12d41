"""Where the time of a refresh goes: seconds of every step by round, from one undisturbed run of a config.

The refresh runs in a folder of its own, which is removed. ``wall`` is the whole command without preparing the data; it
is less than the sum where steps ran side by side, and more by what starts and plans them.

    python -m benchmarks.refresh_round configs/openqa-wiki.yaml --set data.max_queries.train=512 --json round.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.timing import timed, write_report
from raydr import RunConfig
from raydr.graph.refresh import RefreshOutcome, run_refresh
from raydr.graph.session import open_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        settings = [f"workdir={Path(scratch) / 'work'}", "tracking.enabled=false"]
        rounds = [f"refresh.num_rounds={arguments.rounds}", "refresh.arms={}"]
        run(RunConfig.load(arguments.config, [*arguments.overrides, *settings, *rounds]), arguments)


def run(config: RunConfig, arguments: argparse.Namespace) -> None:
    outcomes: list[RefreshOutcome] = []
    with open_session(config) as session:
        session.make(session.recipe.dataset())

        def refresh() -> None:
            outcome = run_refresh(session)
            assert outcome is not None
            outcomes.append(outcome)

        wall = timed(refresh)
    [rounds] = outcomes[0].rounds.values()
    stages = list(dict.fromkeys(stage for one in rounds for stage in one.seconds))
    total = sum(sum(one.seconds.values()) for one in rounds)
    columns = "".join(f"{f'round {one.number}, s':>14}" for one in rounds)
    print(f"{'':12}{columns}{'share':>10}")
    for stage in stages:
        seconds = [one.seconds.get(stage, 0.0) for one in rounds]
        print(f"{stage:12}" + "".join(f"{one:14.1f}" for one in seconds) + f"{sum(seconds) / total:10.1%}")
    sums = [sum(one.seconds.values()) for one in rounds]
    print(f"{'sum':12}" + "".join(f"{one:14.1f}" for one in sums) + f"{1:10.0%}")
    print(f"wall {wall:.1f} s, all steps {total:.1f} s, median round {statistics.median(sums):.1f} s")
    figures = {"seconds": [one.seconds for one in rounds], "wall": wall}
    write_report(arguments.json, "refresh_round", vars(arguments), figures)


if __name__ == "__main__":
    main()
