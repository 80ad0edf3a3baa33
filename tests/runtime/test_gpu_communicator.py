"""Messages between GPUs by NCCL, on fake ones: the tests of communicators, and what only these can do wrong."""

from __future__ import annotations

import pytest
from ostinato.runtime.messages import on_device

from tests.runtime import cases
from tests.runtime import test_communicator as tests
from tests.runtime.gpu_team import team
from tests.sessions import JOB

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
TESTS = [n for n in vars(tests) if n.startswith("test_") and n != "test_alone"]


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("at_once", [on_device.AT_ONCE, 0])
def test_as_threads_do(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small states go to all, large ones in parts."""
    monkeypatch.setattr(tests, "team", team)
    monkeypatch.setattr(on_device, "AT_ONCE", at_once)
    test = getattr(tests, name)
    for arguments in cases.of(test):
        test(**arguments)
