"""NCE against RCL with planted false negatives, by β and batch size (Wang et al., table 4 and figure 1).

An arm for every β and batch size. The picture shows, for the first seed, how the trained encoders score positives, hard
negatives, other queries' positives, and the planted false negatives.

    python -m experiments.ccr_beta configs/experiments/ccr-openqa.yaml --seeds 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.arguments import load_config, numbers, run_parser
from experiments.arm_report import report_arms
from experiments.arm_runs import Arm, model_folder, run_arms
from experiments.arms import ArmData
from experiments.noisy_pairs import make_data
from experiments.passage_kinds import KindScores, kinds_picture, kinds_table, sample_kinds, score_kinds
from experiments.tasks import fetch
from raydr.config.run import RunConfig
from raydr.graph.session import Session, open_session
from raydr.losses.rcl import RCL
from raydr.runtime.console import say
from raydr.store.folder import Folder


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
        data = make_data(session)
        groups = make_groups(config, data, arguments.betas, arguments.batch_sizes)
        arms = [arm for group in groups.values() for arm in group]
        results = run_arms(arms, range(config.seed, config.seed + arguments.seeds), out, keep_models=True)
        kinds = score_arms(session, data, groups, out)
    names = {title: [arm.name for arm in group] for title, group in groups.items()}
    report_arms(config, names, results, out, more=[kinds_table(kinds)])
    (out / "kinds.png").write_bytes(kinds_picture(kinds, "Similarity by kind of passage", len(arguments.betas)))
    say(f"picture: {out}/kinds.png")


def make_groups(
    config: RunConfig, data: ArmData, betas: Sequence[float], batch_sizes: Sequence[int]
) -> dict[str, list[Arm]]:
    """For each batch size the arms, by title."""
    return {
        f"batch {size}": [Arm(f"batch{size}-beta{beta:g}", with_beta(config, beta, size), data) for beta in betas]
        for size in batch_sizes
    }


def with_beta(config: RunConfig, beta: float, batch_size: int) -> RunConfig:
    """The run with another β, on from the same epoch, and another batch size."""
    loss = config.train.loss
    assert isinstance(loss, RCL)
    changed = loss.model_copy(update={"beta": loss.beta.model_copy(update={"final": beta})})
    train = config.train.model_copy(update={"loss": changed, "batch_size": batch_size})
    return config.model_copy(update={"train": train})


def score_arms(
    session: Session, data: ArmData, groups: Mapping[str, Sequence[Arm]], out: Path
) -> dict[str, KindScores]:
    """Scores by kind of passage, by arm, of the first seed."""
    import ray

    config = session.config
    sample = Folder(str((out / "sample").absolute()))
    fetch(ray.remote(num_cpus=1)(sample_kinds).remote(data, config.data.train_split, config.seed, sample))
    run = ray.remote(num_cpus=1)(score_kinds)
    waiting = {
        arm.name: run.remote(data, config.data.train_split, str(model_folder(arm, config.seed, out)), sample)
        for arms in groups.values()
        for arm in arms
    }
    return {name: fetch(one) for name, one in waiting.items()}


if __name__ == "__main__":
    main()
