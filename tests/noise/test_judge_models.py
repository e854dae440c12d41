from __future__ import annotations

import pytest
from pydantic import ValidationError

from raydr.noise.judge_models import SieveConfig


@pytest.mark.parametrize("beta", [0.3, {"final": 0.3}])
def test_the_sieves_beta_is_on_from_the_first_epoch_however_it_is_written(beta: object) -> None:
    assert SieveConfig.model_validate({"beta": beta}).beta.value(0) == 0.3


def test_a_beta_that_would_never_be_on_is_refused() -> None:
    with pytest.raises(ValidationError, match="start_epoch is 1 and num_epochs 1, so β is never on"):
        SieveConfig.model_validate({"beta": {"final": 0.3, "start_epoch": 1}})
