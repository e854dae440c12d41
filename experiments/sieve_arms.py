"""Effect on a retriever of hard negatives with planted false negatives, filtered or not (Wang et al., table 3).

Each number of hard negatives has several arms: ``all`` draws from all candidates, an arm for each filter from those
that it keeps, ``clean`` from those that are not planted. Filters are judges, whose verdicts are reused.
With ``--controls``, each filter has a control arm that drops as many of each query's candidates at random.

    python -m experiments.sieve_arms configs/experiments/sieve-openqa.yaml --seeds 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_report import report_arms
from experiments.arms import Arm, plain_arm, run_arms, seeded_recipes
from experiments.noisy_pairs import REFERENCE
from raydr.console import counted
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.session import open_session

UNFILTERED = "all"


def main() -> None:
    parser = run_parser(__doc__, "sieve-arms", seeds=3)
    parser.add_argument(
        "--hard-negatives", type=numbers(int, 1, 1000), default="1,5,15", help="comma-separated numbers of negatives"
    )
    parser.add_argument("--filters", default="sieve", help="comma-separated judges of negatives")
    parser.add_argument("--controls", action="store_true", help="add an arm for each filter that drops at random")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    filters = arguments.filters.split(",")
    wrong = [name for name in filters if config.judge.judge(name).subject != "negatives"]
    if wrong:
        parser.error(f"--filters: {wrong[0]} judges pairs, not negatives")
    with open_session(config) as session:
        recipes = seeded_recipes(session, arguments.seeds)
        groups = {
            counted(number, "hard negative"): [
                filtered_arms(recipe, filters, number, arguments.controls) for recipe in recipes
            ]
            for number in arguments.hard_negatives
        }
        results = run_arms(session, [arm for seeds in groups.values() for arms in seeds for arm in arms])
    names = {title: [arm.name for arm in seeds[0]] for title, seeds in groups.items()}
    report_arms(config, names, results, out, references={names[title][-1] for title in names})


def filtered_arms(recipe: Recipe, filters: Sequence[str], number: int, controls: bool = False) -> list[Arm]:
    """Return the arms with a number of hard negatives; the first is unfiltered, the last is the reference."""
    train, prefix = {"num_hard_negatives": number}, f"hn{number}-"
    unfiltered = plain_arm(recipe, f"{prefix}{UNFILTERED}", train)
    arms = [unfiltered]
    for name in filters:
        judges = recipe.config.judge
        judged = recipe.judged(judges.chain(judges.judge(name)), recipe.config.data.train_split)
        arms.append(replace(unfiltered, name=f"{prefix}{name}", negatives=judged.negatives))
        if controls:
            at_random = replace(unfiltered.options, drop_at_random=True)
            arms.append(replace(arms[-1], name=f"{prefix}random-as-{name}", options=at_random))
    return [*arms, plain_arm(recipe, f"{prefix}{REFERENCE}", train, clean_only=True)]


if __name__ == "__main__":
    command(main)
