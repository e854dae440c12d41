"""A run of tests that is ended from outside ends, and blames no test."""

from __future__ import annotations

import pytest
from conftest import pytest_exception_interact


@pytest.mark.parametrize("status", [1, 15])
def test_an_exit_within_a_test_ends_the_run(status: int) -> None:
    def leave() -> None:
        raise SystemExit(status)

    call = pytest.CallInfo.from_call(leave, "call")
    with pytest.raises(pytest.exit.Exception, match=rf"ended from outside \(SIGTERM\), exit status {status}"):
        pytest_exception_interact(call)


def test_what_a_test_raises_is_its_own() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    pytest_exception_interact(pytest.CallInfo.from_call(fail, "call"))
