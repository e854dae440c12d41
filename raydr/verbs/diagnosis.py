"""The verb ``diagnose``: what harms a training, and the run that tests the first remedy."""

from __future__ import annotations

from raydr.artefacts import cross_fitting
from raydr.artefacts.diagnosis import REPORT, diagnosis, load_result, show, trial_settings
from raydr.artefacts.places import TRAINED, UNTRAINED, Places
from raydr.config.run import RunConfig
from raydr.console import say
from raydr.errors import ConfigError
from raydr.pipeline.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, set_options, takes_config


@takes_config
def diagnose(
    config: RunConfig,
    model: str = "trained",
    quick: bool = False,
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """List what harms a training, the likeliest cause first, each with numbers and a remedy.

    Args:
        model: training of the run, or of a variant.
        quick: train no models of folds. If dev is held out of the pairs, only a retriever as checkpoint then detects
            mismatched pairs.

    Raises:
        ConfigError: the config trains no such model.
    """
    if model not in (own := [TRAINED, *config.variants]):
        raise ConfigError(f"{model!r} is no training of this config; allowed: {', '.join(own)}")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        margins = cross_fitting.margins(recipe.context, config.data.train_split)
        folds, train = config.cross_fit.resolved(config.model), config.variant(model).train
        exist = session.inventory.state(margins) == "done"
        # Wrong pairs of train and of a dev that was held out of them look alike: only margins tell.
        need_no_training = not folds.num_epochs and bool(config.data.hold_out)
        if folds.num_epochs and not (quick or exist):
            say(
                f"detecting mismatched pairs takes {folds.num_folds} short trainings on parts of the pairs, "
                f"{folds.total_epochs} epochs of the data in all (the model has "
                f"{train.num_epochs}); --quick skips them"
            )
        target = diagnosis(
            recipe.context.of(config.variant(model)),
            model,
            recipe.trained(model),
            recipe.model(UNTRAINED),
            margins if exist or need_no_training or not quick else None,
        )
        made = session.make(recipe.named(f"diagnoses/{model}", target))
        for artifact in made:
            show(artifact)
            session.tracker.log_artifact(artifact.local(REPORT))
        return made


def next_after_diagnose(made: list[Artifact], config: RunConfig) -> tuple[str, list[str], str]:
    """Suggest a run that compares the first remedy with the training, in this working folder or its own."""
    faults = load_result(made[0]).faults
    if not faults or not faults[0].settings:
        return "report", [], ""
    workdir = str(made[0].folder).rpartition("/store/")[0]
    pointers = {name: Places.of(workdir).pointer(f"diagnoses/{name}") for name in config.variants}
    examined = next((name for name, of in pointers.items() if of and of.key == made[0].fingerprint), TRAINED)
    changes = config.variants.get(examined, {})
    remedy = {setting.removeprefix("train.") for setting in faults[0].settings}
    variants = ({f"{key}={value}" for key, value in others.items()} for others in config.variants.values())
    is_there = not changes and remedy in variants
    trial = [] if is_there else set_options(trial_settings(faults[0], workdir, changes))
    return "evaluate", trial, "to test the first remedy"
