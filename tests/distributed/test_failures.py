"""What goes wrong in a worker is told as itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raydr.distributed.ray_pool import RayPool
from raydr.errors import ArtifactError
from raydr.store.building import Building, begin
from raydr.store.identity import MANIFEST, Identity


@pytest.mark.usefixtures("ray_local")
def test_an_artefact_that_cannot_be_opened_where_it_is_worked_on_is_told(tmp_path: Path) -> None:
    with begin(str(tmp_path / "corpus"), Identity(kind="corpus")) as making:
        assert isinstance(making, Building)
        artifact = making.finish()
    artifact.folder.remove(MANIFEST)
    with pytest.raises(
        ArtifactError, match=r"the corpus at .* is not complete \(no manifest\): raydr prepare CONFIG makes it"
    ):
        RayPool().run(json.dumps, artifact)
