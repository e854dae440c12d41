"""Random, hard and mixed negatives, and the corrected loss, on a retriever (Zhang and Stratos, table 1 and appendix A).

The config trains with random negatives; each variant is an arm. Before every epoch all training queries are scored
against all passages, and hard negatives are drawn from what the model then likes best.

    python -m experiments.negatives_arms configs/experiments/negatives-code.yaml --seeds 1
"""

from __future__ import annotations

from experiments.arguments import command, load_config, run_parser
from experiments.arm_report import report_arms
from experiments.arms import plain_arm, run_arms
from raydr.graph.session import open_session
from raydr.negatives.samplers.mixed import Mixed

BASELINE = "random"
#: Variants that are compared with each other too: drawn alike, without and with the correction.
CORRECTION = ("hard-iid", "corrected")


def main() -> None:
    parser = run_parser(__doc__, "negatives-arms", seeds=3)
    parser.add_argument("--depth", type=int, default=100, help="best passages of a query that hard ones are drawn from")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    sampler = config.train.sampler
    if not (isinstance(sampler, Mixed) and sampler.random_share == 1):
        parser.error(f"{arguments.config}: train.sampler is the baseline and must be {{name: mixed, random_share: 1}}")
    names = [BASELINE, *config.variants]
    with open_session(config) as session:
        arms = [plain_arm(session.recipe, name, redraw_depth=arguments.depth) for name in names]
        results = run_arms(session, arms, arguments.seeds)
    groups = {"against random": names}
    if set(CORRECTION) <= set(names):
        groups["with and without the correction"] = list(CORRECTION)
    report_arms(config, groups, results, out)


if __name__ == "__main__":
    command(main)
