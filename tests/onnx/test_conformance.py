"""ONNX's suite of 2,024 tests for a CPU: all but the excluded ones pass, and these fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..thorough import THOROUGH
from .excluded import EXCLUDED

pytest.importorskip("onnx", minversion="1.23")  # whose tests the list of those left out is about

from .conformance import REAL, cases, failures

ONE_IN = 12  # of which a run that is not thorough takes one


def is_excluded(name: str) -> bool:
    return any(re.match(pattern, name) for pattern in EXCLUDED)


@pytest.mark.slow
def test_nodes() -> None:
    names = [n for n in cases() if n not in REAL and not is_excluded(n)]
    assert len(names) > 1900
    assert failures(names if THOROUGH else names[::ONE_IN]) == {}


@pytest.mark.slow
def test_what_is_left_out_fails() -> None:
    """And each pattern is of some tests."""
    names = [n for n in cases() if is_excluded(n)]
    assert [p for p in EXCLUDED if not any(re.match(p, n) for n in names)] == []
    chosen = names if THOROUGH else names[::ONE_IN]
    assert sorted(set(chosen) - failures(chosen).keys()) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if "squeeze" in n else pytest.mark.slow)
        for n in sorted(REAL)
        if THOROUGH or n in ("test_squeezenet_cpu", "test_resnet50_cpu")
    ],
)
def test_networks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of nine, with the weights and results that the package has."""
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))
    assert failures([name]) == {}
