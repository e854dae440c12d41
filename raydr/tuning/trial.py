"""A trial's own process: it asks for work, passes on what comes of it, and holds no CPU while it waits."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import chain
from typing import Any

from ray.tune import Trainable

from raydr.stages.failures import root_cause
from raydr.store.folder import Folder
from raydr.tuning.objective import Objective
from raydr.tuning.trial_work import News
from raydr.tuning.trials import WAITED, WAITS_FOR, Row, place_of

#: Why a trial died, in its folder, if it could say so.
REASON = "died.json"


class TrialProcess(Trainable):  # type: ignore[misc]  # Ray is not typed
    """What Ray Tune runs for a trial: each of its steps is an epoch (or round), or the word that the trial waits."""

    def setup(self, config: dict[str, Any], objective: Objective, search: Folder) -> None:
        """Begin.

        Args:
            config: under ``trial`` its ``number`` and ``values``, and the ``rows`` that an interrupted search has left:
                they are told again, so that the scheduler sees what it saw then.
            objective: what to do.
            search: the folder of the search.
        """
        trial = config["trial"]
        self.results = _results(trial, objective, place_of(search, trial["number"]))

    def step(self) -> dict[str, Any]:
        return next(self.results)

    def cleanup(self) -> None:
        """End what works for the trial. Tune waits for that before this process goes."""
        self.results.close()


def _results(trial: dict[str, Any], objective: Objective, place: Folder) -> Generator[dict[str, Any], None, None]:
    place.remove(REASON)
    reported = 0
    before = News([Row.model_validate(row) for row in trial["rows"]])
    try:
        with closing(objective.run(trial["values"], place)) as work:
            for news in chain([before], work):
                if news.waits_for:
                    # No scheduler looks at what has no score.
                    yield {WAITS_FOR: news.waits_for, WAITED: news.waited_s}
                for row in news.rows:
                    done = news.finished and row is news.rows[-1]
                    # An interrupted search may have written the last row and not that it was the last.
                    if row.epoch > reported or done:
                        reported = row.epoch
                        # Tune says of a trial that a scheduler stops that it is done, too.
                        result = {"epoch": row.epoch, "score": row.score, "row": row.model_dump(), "finished": done}
                        yield result | {"done": done}
    except Exception as error:
        # Tune passes errors on as pickles; the book reads this.
        place.write_json(REASON, root_cause(error))
        raise
