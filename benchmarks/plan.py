"""Is `raydr plan` right? Plans and encodes a corpus in turns, and prints planned and measured seconds.

    python -m benchmarks.plan configs/openqa-wiki.yaml --repeats 3

The data have to be prepared and the model to be there: `raydr prepare CONFIG`, `raydr train CONFIG`. What is compared
is the whole stage, start-up included, as `raydr report` compares it.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.timing import write_report
from raydr import RunConfig, encode, plan
from raydr.graph.places import TRAINED
from raydr.graph.stage_times import read_times
from raydr.store.folder import Folder

STAGE = f"encode-{TRAINED}-passages"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of a run whose corpus and model are there")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="", help="write the figures here")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, ["tracking.enabled=false"])
    planned, took = [], []
    for _ in range(arguments.repeats):
        planned.append(next(stage.seconds for stage in plan(config).stages if stage.name == STAGE))
        encode(config, again=True)
        time = next(one for one in read_times(Folder(config.workdir).absolute()) if one.stage == STAGE)
        took.append(time.seconds)
        print(f"planned {planned[-1]:.1f} s, took {took[-1]:.1f} s, ratio {took[-1] / planned[-1]:.2f}")
    ratio = statistics.median(took) / statistics.median(planned)
    print(
        f"medians of {arguments.repeats}: planned {statistics.median(planned):.1f} s, took "
        f"{statistics.median(took):.1f} s, ratio {ratio:.2f} (wanted: 0.80 to 1.25)"
    )
    write_report(arguments.json, "plan", vars(arguments), {"planned": planned, "took": took, "ratio": ratio})


if __name__ == "__main__":
    main()
