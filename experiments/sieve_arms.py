"""Hard negatives with planted false ones, filtered or not: what it does to a retriever (Wang et al., table 3).

For each number of hard negatives one arm draws them from all candidates (``all``), one from what each filter leaves,
and one from all but the planted ones (``clean``). Filters are judges: they are asked once and their verdicts kept.

    python -m experiments.sieve_arms configs/experiments/sieve-openqa.yaml --seeds 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.arguments import load_config, numbers, run_parser
from experiments.arm_report import report_arms
from experiments.arm_runs import Arm, run_arms
from experiments.arms import ArmData, ArmOptions
from experiments.noisy_pairs import REFERENCE, make_data
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.session import Session, open_session
from raydr.store.artifact import Artifact

UNFILTERED = "all"


def main() -> None:
    parser = run_parser(__doc__, "sieve-arms", seeds=3)
    parser.add_argument(
        "--hard-negatives", type=numbers(int, 1, 1000), default="1,5,15", help="comma-separated numbers of them"
    )
    parser.add_argument("--filters", default="sieve", help="comma-separated judges of negatives")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    filters = arguments.filters.split(",")
    try:
        wrong = [name for name in filters if config.judge.judge(name).subject != "negatives"]
    except ConfigError as error:
        parser.error(f"--filters: {error}")
    if wrong:
        parser.error(f"--filters: {wrong[0]} judges pairs, not negatives")
    with open_session(config) as session:
        groups = make_groups(session, arguments.hard_negatives, filters)
        arms = [arm for group in groups.values() for arm in group]
        results = run_arms(arms, range(config.seed, config.seed + arguments.seeds), out)
    names = {title: [arm.name for arm in group] for title, group in groups.items()}
    report_arms(config, names, results, out, references={names[title][-1] for title in names})


def make_groups(session: Session, numbers: Sequence[int], filters: Sequence[str]) -> dict[str, list[Arm]]:
    """For each number of hard negatives the arms, by title; the first is unfiltered, the last the reference."""
    data, config = make_data(session), session.config
    judged = {}
    for name in filters:
        node = session.recipe.judged([config.judge.judge(name)], config.data.train_split).negatives
        assert node is not None
        [judged[name]] = session.make(node)
    return {
        f"{number} hard negative{'s' if number > 1 else ''}": filtered_arms(config, data, judged, number)
        for number in numbers
    }


def filtered_arms(config: RunConfig, data: ArmData, judged: dict[str, Artifact], number: int) -> list[Arm]:
    """The arms with one number of hard negatives."""
    changed = config.model_copy(update={"train": config.train.model_copy(update={"num_hard_negatives": number})})
    prefix = f"hn{number}-"
    arms = [Arm(f"{prefix}{UNFILTERED}", changed, data)]
    for name, artifact in judged.items():
        arms.append(Arm(f"{prefix}{name}", changed, replace(data, negatives=artifact.folder)))
    return [*arms, Arm(f"{prefix}{REFERENCE}", changed, data, ArmOptions(clean_only=True))]


if __name__ == "__main__":
    main()
