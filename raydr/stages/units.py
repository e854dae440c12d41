"""Judging in units: ranges of rows of the input's parts, one output part each, spread over a pool of Ray actors.

Units are ranges of about the same number of rows, so that memory is bounded and small inputs of few parts still
keep several workers busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import ArtifactError
from raydr.models.pair_scoring import PairScorer
from raydr.runtime.console import progress_bar, say
from raydr.stages.data_context import data_context
from raydr.stages.encode import choose_device, encoder_dtype, plan_actors, require_device
from raydr.stages.failures import worker_errors
from raydr.store.artifact import Artifact, Building, Part, record_part
from raydr.store.folder import Folder, write_part


@dataclass(frozen=True)
class Unit:
    """Rows ``start`` to ``end`` of one part; ``number`` is what the output part is called after."""

    part: str
    start: int
    end: int
    number: str


def plan_units(artifact: Artifact, under: str, rows: int) -> list[Unit]:
    """The parts below ``under`` in ranges of at most ``rows`` rows; numbers are ``PART-RANGE``."""
    units = []
    for at, name in enumerate(artifact.parts(under)):
        num_rows = artifact.manifest.parts[name].rows
        for step, start in enumerate(range(0, num_rows, rows)):
            units.append(Unit(name, start, min(start + rows, num_rows), f"{at:05d}-{step:05d}"))
    return units


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored; small and picklable."""

    model: Folder
    fingerprint: str
    is_cross_encoder: bool
    dtype: str
    device: str
    token_budget: int
    num_threads: int

    @property
    def identity(self) -> dict[str, Any]:
        """What of it determines the scores, besides the model."""
        return {"dtype": self.dtype, "token_budget": self.token_budget}

    def open(self) -> PairScorer:
        """Load the model, in the process that will use it."""
        from raydr.models.cross_encoder import CrossEncoderScorer
        from raydr.models.pair_scoring import DualEncoderScorer

        require_device(self.device)
        kind = CrossEncoderScorer if self.is_cross_encoder else DualEncoderScorer
        folder = self.model.localize_all()
        return kind(folder, self.dtype, self.device, self.token_budget, self.num_threads)


def plan_scoring(config: RunConfig, model: Folder, is_cross_encoder: bool) -> Scoring:
    """Scoring with a model artefact and the settings of the section ``encode``.

    Raises:
        ArtifactError: there is no such model.
        ConfigError: the settings contradict each other or the cluster.
    """
    settings = config.encode
    device = choose_device(settings)
    dtype, reason = encoder_dtype(settings, device)
    say(f"judge: dtype {dtype} on {device} ({reason})")
    return Scoring(
        model=model,
        fingerprint=Artifact.open(model, "cross_encoder" if is_cross_encoder else "model").fingerprint,
        is_cross_encoder=is_cross_encoder,
        dtype=dtype,
        device=device,
        token_budget=settings.batch_tokens(device),
        num_threads=max(1, int(settings.cpus_per_actor)),
    )


def write_unit(output: Folder, name: str, rows: int, write: Callable[[str], None]) -> dict[str, Any]:
    """Write and record one output part; returns the one-row batch that :func:`run_units` expects."""
    record = write_part(output, name, rows, write)
    record_part(output, name, record)
    return {"name": [name], **{key: [value] for key, value in record.items()}}


def run_units(
    config: RunConfig,
    building: Building,
    units: Sequence[Unit],
    name_of: Callable[[Unit], str],
    worker: type[Any],
    job: Any,
    description: str,
) -> None:
    """Do the units whose output part is not there yet.

    Args:
        config: ``encode`` says how many actors of which size.
        building: the artefact; its ``done`` gets the new parts.
        units: all units.
        name_of: name of a unit's output part.
        worker: actor class, constructed with ``job``; called with a batch of one unit (columns part, start, end,
            number), it returns what :func:`write_unit` does.
        job: what every worker knows.
        description: of the progress bar.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    todo = [unit for unit in units if name_of(unit) not in building.done]
    if len(todo) < len(units):
        say(f"judge: {len(units) - len(todo)} of {len(units)} parts are there already, {len(todo)} to do")
    if not todo:
        return
    fewest, most = (min(count, len(todo)) for count in plan_actors(config.encode, "judge"))
    total = sum(unit.end - unit.start for unit in todo)
    context = DataContext.current(data_context())
    with worker_errors(), context, progress_bar(description, total=total, unit="rows") as bar:
        records = ray.data.from_items(
            [{"part": unit.part, "start": unit.start, "end": unit.end, "number": unit.number} for unit in todo],
            override_num_blocks=len(todo),
        ).map_batches(
            worker,
            batch_size=1,
            batch_format="numpy",
            fn_constructor_kwargs={"job": job},
            compute=ActorPoolStrategy(min_size=fewest, max_size=most),
            num_cpus=config.encode.cpus_per_actor,
            num_gpus=config.encode.gpus_per_actor,
        )
        for record in records.iter_rows():
            # The worker has recorded the part on disk already.
            part = Part(rows=int(record["rows"]), bytes=int(record["bytes"]), checksum=str(record["checksum"]))
            building.done[str(record["name"])] = part
            bar.advance(part.rows)
    missing = [unit for unit in todo if name_of(unit) not in building.done]
    if missing:
        raise ArtifactError(f"{len(missing)} parts were not made, the first is {name_of(missing[0])}: run it again")


def unit_of(batch: dict[str, Any]) -> Unit:
    """The unit in a batch of one."""
    return Unit(str(batch["part"][0]), int(batch["start"][0]), int(batch["end"][0]), str(batch["number"][0]))
