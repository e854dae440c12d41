"""NCE against RCL with planted false negatives, by β and batch size (Wang et al., table 4 and figure 1).

An arm for every β and batch size. The picture shows, for the first seed, how the trained encoders score positives, hard
negatives, other queries' positives, and the planted false negatives.

    python -m experiments.ccr_beta configs/experiments/ccr-openqa.yaml --seeds 1
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_report import report_arms
from experiments.arm_training import MODEL, ArmData
from experiments.arms import Arm, make_arms, plain_arm, run_arms
from experiments.passage_kinds import KindScores, kinds_picture, kinds_table, sample_kinds, score_kinds
from raydr.graph.recipe import Recipe
from raydr.graph.session import Session, open_session
from raydr.losses.rcl import RCL


def main() -> None:
    parser = run_parser(__doc__, "ccr-beta", seeds=3)
    parser.add_argument(
        "--betas", type=numbers(float, 0, 1), default="0,0.25,0.5", help="comma-separated; the first is compared with"
    )
    parser.add_argument("--batch-sizes", type=numbers(int, 2, 2**20), default="16,64", help="comma-separated")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if not isinstance(config.train.loss, RCL):
        parser.error(f"{arguments.config} trains with the loss {config.train.loss.name}; β belongs to rcl")
    with open_session(config) as session:
        groups = {
            f"batch {size}": [beta_arm(session.recipe, beta, size) for beta in arguments.betas]
            for size in arguments.batch_sizes
        }
        arms = [arm for group in groups.values() for arm in group]
        results = run_arms(session, arms, arguments.seeds)
        kinds = score_arms(session, arms)
    names = {title: [arm.name for arm in group] for title, group in groups.items()}
    picture = kinds_picture(kinds, "Similarity by kind of passage", len(arguments.betas))
    report_arms(config, names, results, out, more=[kinds_table(kinds)], pictures={"kinds.png": picture})


def beta_arm(recipe: Recipe, beta: float, batch_size: int) -> Arm:
    """The run with another β, on from the same epoch, and another batch size."""
    loss = recipe.config.train.loss
    assert isinstance(loss, RCL)
    changed = loss.model_copy(update={"beta": loss.beta.model_copy(update={"final": beta})})
    train = {"loss": changed, "batch_size": batch_size}
    return plain_arm(recipe, f"batch{batch_size}-beta{beta:g}", train, keep_model=True)


def score_arms(session: Session, arms: Sequence[Arm]) -> dict[str, KindScores]:
    """Scores by kind of passage, by arm, of the first seed."""
    config, recipe = session.config, session.recipe
    split, mined = config.data.train_split, [arms[0].negatives] if arms[0].negatives is not None else []
    data = ArmData.of(session.make(recipe.dataset(), recipe.corpus(), *mined))
    pool = data.pool()
    sample = pool.run(sample_kinds, data, split, config.seed)
    made = make_arms(session, arms, [config.seed])
    calls = [(name, data, split, made[name, config.seed].folder / MODEL, sample) for name in (one.name for one in arms)]
    found = dict(pool.map(score_kinds, calls, "arms", "arms"))
    return {arm.name: found[arm.name] for arm in arms}


if __name__ == "__main__":
    command(main)
