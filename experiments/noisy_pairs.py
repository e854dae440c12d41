"""Training on mismatched pairs (NPC's table 2 in small): NCE, co-teaching, NPC, NCE on filtered and on clean pairs.

Every variant of the config is an arm, beside plain NCE as the config trains it (``nce``), the same training on what a
judge of ``judge.judges`` leaves (``JUDGE-filtered``), and the same training without the pairs that are known to be
mismatched (``clean``). Arms and seeds run side by side as Ray tasks; one that is finished is not run again.

    python -m experiments.noisy_pairs configs/experiments/noisy-code.yaml --seeds 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.arguments import load_config, run_parser
from experiments.arm_report import report_arms
from experiments.arm_runs import Arm, run_arms
from experiments.arms import ArmData, ArmOptions
from raydr.config.run import RunConfig
from raydr.errors import ConfigError, DataError
from raydr.graph.session import Session, open_session

BASELINE = "nce"
REFERENCE = "clean"
FILTERED = "-filtered"


def main() -> None:
    parser = run_parser(__doc__, "experiment", seeds=3)
    parser.add_argument("--arms", default="", help="comma-separated; all if left out")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    try:
        names = arm_names(config, arguments.arms)
    except ConfigError as error:
        parser.error(str(error))
    with open_session(config) as session:
        arms = make_arms(session, names)
        results = run_arms(arms, range(config.seed, config.seed + arguments.seeds), out)
    report_arms(config, {"": names}, results, out, references={REFERENCE})


def arm_names(config: RunConfig, asked: str = "") -> list[str]:
    """All arms of a config, or those asked for.

    Raises:
        ConfigError: one that was asked for is none of them.
    """
    filtered = [f"{judge.name}{FILTERED}" for judge in config.judge.judges]
    known = [BASELINE, *config.variants, *filtered, REFERENCE]
    names = asked.split(",") if asked else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(f"--arms: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def make_arms(session: Session, names: Sequence[str]) -> list[Arm]:
    """The arms with their data, which are made here: noise, mined candidates, and what judges leave of them."""
    data = make_data(session)
    arms = []
    for name in names:
        if name.endswith(FILTERED):
            arms.append(_filtered(session, data, name))
        else:
            options = ArmOptions(clean_only=name == REFERENCE)
            arms.append(Arm(name, session.config.variant(name), data, options))
    return arms


def make_data(session: Session) -> ArmData:
    """The data set with its noise, and mined negatives if the arms use them."""
    recipe = session.recipe
    targets = [recipe.dataset(), recipe.corpus()]
    if session.config.draws_candidates:
        targets.append(recipe.candidates(session.config.data.train_split))
    dataset, corpus, *mined = session.make(*targets)
    return ArmData(dataset.folder, corpus.folder, mined[0].folder if mined else None)


def _filtered(session: Session, data: ArmData, name: str) -> Arm:
    """The config's own training on what a judge leaves of the pairs, or of the candidates."""
    config, judge = session.config, session.config.judge.judge(name.removesuffix(FILTERED))
    if judge.subject == "negatives" and data.negatives is None:
        raise ConfigError(f"arm {name}: {judge.name} judges hard negatives, set negatives and train.num_hard_negatives")
    found = session.recipe.judged([judge], config.data.train_split)
    node = found.pairs if judge.subject == "pairs" else found.negatives
    assert node is not None
    [judged] = session.make(node)
    if judge.subject == "pairs" and judged.info["judgments_after"] < config.train.batch_size:
        # Said before any arm is trained, and not by this one in the end.
        before, after = judged.info["judgments_before"], judged.info["judgments_after"]
        raise DataError(
            f"arm {name}: {judge.name} leaves {after} of {before} pairs, fewer than train.batch_size "
            f"{config.train.batch_size}: change the judge's settings, or leave the arm out (--arms)"
        )
    if judge.subject == "pairs":
        return Arm(name, config, replace(data, dataset=judged.folder), inputs=(judged.fingerprint,))
    return Arm(name, config, replace(data, negatives=judged.folder))


if __name__ == "__main__":
    main()
