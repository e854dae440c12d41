"""``raydr diagnose``: why is the trained model worse than the start, than BM25, than it could be?"""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.session import open_session
from raydr.runtime.console import say
from raydr.stages import cross_fitting
from raydr.stages.diagnose import diagnosis
from raydr.stages.places import TRAINED, UNTRAINED
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, takes_config


@takes_config
def diagnose(
    config: RunConfig,
    model: str = "trained",
    quick: bool = False,
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Look for what spoils a training, the likeliest cause first, with numbers and a remedy each.

    Args:
        model: the run's training, or one of its variants.
        quick: train no models of folds to look for mismatched pairs, unless they are there.

    Raises:
        ConfigError: the model is none that the config trains.
    """
    from raydr.stages.diagnose import REPORT, show

    if model not in (own := [TRAINED, *config.variants]):
        raise ConfigError(f"{model!r} is none of the trainings of this config: {', '.join(own)}")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        margins = cross_fitting.margins(recipe.run, config.data.train_split)
        there = session.inventory.state(margins) == "done"
        folds, train = config.cross_fit, config.variant(model).train
        if folds.num_epochs and not (quick or there):
            say(
                f"mismatched pairs are looked for by {folds.num_folds} short trainings that leave pairs out, "
                f"{(folds.num_folds - 1) * folds.num_epochs} epochs of the data in all (the model has "
                f"{train.num_epochs}); --quick leaves that out"
            )
        target = diagnosis(
            recipe.run.of(config.variant(model)),
            model,
            recipe.trained(model),
            recipe.model(UNTRAINED),
            margins if there or not quick else None,
        )
        made = session.make(recipe.named(f"diagnoses/{model}", target))
        for one in made:
            show(one)
            session.tracker.log_artifact(one.local(REPORT))
        return made
