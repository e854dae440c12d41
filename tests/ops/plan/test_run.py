"""Planning tries the real model, and the report sets what the run takes beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.errors import ArtifactError
from raydr.graph.job import open_job
from raydr.ops.plan.run import run_plan


@pytest.mark.ray
def test_a_run_is_planned_done_and_compared(ray_local, beir_folder, tiny_checkpoint, tmp_path, capsys):
    sections = {"plan": {"sample_passages": 50, "probe_seconds": 0.1, "prices": {"cpu_hour": 0.1}}}
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **sections))
    with open_job(config) as job:
        with pytest.raises(ArtifactError, match="the corpus at .* does not exist"):
            run_plan(job, refresh=False)
        job.prepare()
        plan = run_plan(job, refresh=False)
        job.mine("train")
        job.train()
        job.encode()
        encoded = job.workspace.passages().root
        took = {path.name: path.read_text() for path in (tmp_path / "times").iterdir()}
        # A stage that had nothing to do took no time that would count.
        job.encode()
        job.report()
    assert took == {path.name: path.read_text() for path in (tmp_path / "times").iterdir()}
    assert sorted(took) == ["encode-trained-passages.json", "train-trained.json"]
    assert {"train-trained", "encode-trained-passages", "index-trained"} <= {stage.name for stage in plan.stages}
    assert all(stage.seconds > 0 for stage in plan.stages)
    written = sum(path.stat().st_size for path in Path(encoded).glob("*.arrow"))
    [encoding] = [stage for stage in plan.stages if stage.name == "encode-trained-passages"]
    assert encoding.disk_bytes == pytest.approx(written, rel=0.9)
    assert (encoding.worker_bytes or 0) > 2**20
    page = (tmp_path / "report.html").read_text()
    assert "Plan and what it took" in page
    assert "not run" in page
    assert "cost" in capsys.readouterr().err


@pytest.mark.ray
def test_refresh_rounds_are_planned_by_the_figures_of_another_device(
    ray_local, beir_folder, tiny_checkpoint, tmp_path, capsys
):
    def plan(num_passages: int) -> dict[str, float]:
        device = {"name": "an H100", "flops": 4e14}
        config = RunConfig.parse(
            small_run(
                beir_folder, tiny_checkpoint, tmp_path,
                plan={"sample_passages": 50, "device": device, "num_passages": num_passages},
                refresh={"num_rounds": 2, "evaluate_splits": ["dev"]},
            )
        )  # fmt: skip
        with open_job(config) as job:
            job.prepare()
            return {stage.name: stage.seconds for stage in run_plan(job, refresh=True).stages}

    found = plan(10**6)
    assert {"round-1/train", "round-2/passages", "round-2/run-train", "round-2/index"} <= found.keys()
    assert plan(10**9)["round-1/passages"] > 100 * found["round-1/passages"]
    said = capsys.readouterr().err
    assert "an H100" in said
    assert "1,000,000,000 passages" in said
    assert "bm25" in said
