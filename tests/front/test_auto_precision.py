"""`precision="auto"`: what is chosen, what is refused, and what is looked at later."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.cpu_device import Cpu
from ostinato.planner.plan import Plan

import ostinato as ost
from ostinato.errors import ArgumentError, PrecisionWarning
from tests.helpers import counts_traces, on


@pytest.fixture(autouse=True)
def _both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this processor multiplied both, whichever it has."""
    monkeypatch.setattr(Cpu, "halves", (np.dtype(ost.bfloat16), np.dtype(np.float16)))


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(dtype)


def net(x: Any, w: Any, v: Any) -> Any:
    h = ost.tanh(x @ w)
    return ost.nn.softmax(h @ v), (h * h).mean()


def arrays(dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    shapes = ((60, 30), (30, 20), (20, 10))
    return [numbers(*s, seed=seed + k, dtype=dtype) for k, s in enumerate(shapes)]


def chosen(f: Any) -> str:
    return str(f.plan.target.precision).rpartition("=")[2]


def test_it_goes_as_far_as_the_tolerance_allows() -> None:
    found = []
    for tolerance in (0.3, 3e-3, 1e-5):
        f = ost.compile(net, precision="auto", tolerance=tolerance)
        made = f(*arrays())
        right = net(*arrays(np.float64))
        for y, exact in zip(made, right, strict=True):
            off = np.linalg.norm(np.asarray(y) - np.asarray(exact))
            assert off < tolerance * np.linalg.norm(np.asarray(exact))
            assert y.dtype == np.float32
        found.append(chosen(f))
    assert found == ["bb", "hh", "--"]
    g = ost.compile(net, precision="auto", tolerance=1e-5)
    assert g(*arrays(np.float64))[0].dtype == np.float64
    assert chosen(g) == "ss"


def test_results_that_are_named() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        out, size = net(x, w, v)
        return {"out": out, "rest": (size, x @ w)}

    found = []
    for tolerance in ({"out": 3e-3, "rest": 0.3}, {"rest": 0.3}, {"out": 3e-3}, {"rest": 1e-5}):
        g = ost.compile(f, precision="auto", tolerance=tolerance)
        g(*arrays())
        found.append(chosen(g))
    assert found == ["hh", "bb", "hh", "-b"]
    by_place = ost.compile(net, precision="auto", tolerance={1: 1e-5})
    by_place(*arrays())
    assert chosen(by_place) == "-b"
    for options, names in (({"loss": 0.1}, "'out', 'rest'"), ({0: 0.1}, "'out', 'rest'")):
        g = ost.compile(f, precision="auto", tolerance=options)
        with pytest.raises(ArgumentError, match=f"got a result .*; needed names of .*: {names}"):
            g(*arrays())
    g = ost.compile(lambda x, w, v: x @ w, precision="auto", tolerance={0: 0.1})
    with pytest.raises(ArgumentError, match="needed names of what it returns: one result has none"):
        g(*arrays())


def test_one_worker_or_several_choose_and_explain(tmp_path: Path) -> None:
    letters = set()
    for workers in (1, 2):
        with on(workers):
            f = ost.compile(net, precision="auto", tolerance=0.3)
            x, *weights = arrays()
            f(ost.asarray(x, split=0), *(ost.asarray(w, split=0) for w in weights))
            letters.add(chosen(f))
            text = f.plan.explain()
            assert "rounded   2 of 2 products for tolerance 0.3: 7.42 KiB less to read" in text
            assert "          matmul: float32 -> bfloat16 (" in text
            assert "measured error beside float64: 0.00" in text
            assert "measured time " in text
            path = tmp_path / str(workers)
            f.plan.to_file(path)
            assert "rounded   2 of 2 products" in Plan.from_file(path).explain()
    assert letters == {"bb"}
    g = ost.compile(net, precision="auto", tolerance=1e-4)
    g(*arrays())
    assert "rounded   0 of 2 products" in g.plan.explain()
    assert "stays     matmul, which in bfloat16 changes a result by 0.00" in g.plan.explain()


def test_tolerances_that_cannot_be_kept() -> None:
    f = ost.compile(net, precision="auto", tolerance=1e-9)
    with pytest.raises(
        ArgumentError,
        match=r"tolerance=\) of net.*got tolerance=1e-09; needed at least .*e-0\d, as result \d "
        r"\(float32\) as written is .* off float64 already\.",
    ):
        f(*arrays())
    g = ost.compile(net, precision="auto", tolerance=1e-15)
    with pytest.raises(ArgumentError, match="as float64 itself rounds as much"):
        g(*arrays(np.float64))


def test_what_is_no_tolerance() -> None:
    for options, message in (
        ({"tolerance": 1e-3}, "got tolerance=0.001 with precision=None; needed precision='auto'"),
        ({"tolerance": 0.1, "precision": "f32"}, "needed precision='auto'"),
        ({"tolerance": 2.0, "precision": "auto"}, "got tolerance=2.0; needed a number between 0"),
        ({"tolerance": "low", "precision": "auto"}, "got tolerance='low'"),
        ({"tolerance": {}, "precision": "auto"}, "got tolerance={}"),
        ({"tolerance": {0: 3.0}, "precision": "auto"}, "got tolerance={0: 3.0}"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ost.compile(net, **options)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"connect.*got precision='auto'"):
        ost.connect(precision="auto")
    assert ost.compile(net, precision="auto").tolerance == 1e-3


def test_what_overflows_halves_is_not_rounded_to_them() -> None:
    f = ost.compile(lambda x, w: x @ w, precision="auto", tolerance=2e-3)
    x, w, _ = arrays()
    f(x, w)
    assert chosen(f) == "h"
    f(x * 1e4, w)  # 16 times that would be infinite
    assert len(f.entries) == 1
    g = ost.compile(f.function, precision="auto", tolerance=2e-3)
    g(x * 1e4, w)
    assert chosen(g) == "-"


@counts_traces
def test_later_calls_are_looked_at() -> None:
    """Chosen where rounding changes nothing, it is chosen again where it does, before results are given."""
    f = ost.compile(net, precision="auto", tolerance=2e-3)
    x, w, v = arrays()
    nothing = np.zeros_like(w)
    f(x, nothing, v)
    assert chosen(f) == "bb"
    message = r"net: result 0 of call 2 would be 0\.00.* off float64.* was chosen again"
    with pytest.warns(PrecisionWarning, match=message):
        y = f(x, w, v)[0]
    assert "measured error on call 2: at most 0.00" in f.plan.explain()
    right = np.asarray(net(x, w, v)[0])
    assert np.linalg.norm(np.asarray(y) - right) < 2e-3 * np.linalg.norm(right)
    f(x, nothing, v)  # even there nothing narrower than that
    assert chosen(f) == "hh"
    for k in range(1, 9):
        f(x, w * (1 + k / 100), v)
    assert (chosen(f), len(f.entries)) == ("hh", 1)
    assert "measured error on call 8" in f.plan.explain()


def test_state_that_is_given_away_and_random_numbers() -> None:
    def step(w: Any, x: Any) -> Any:
        g = ost.grad(lambda w: ((x @ w + ost.random.normal((60, 20), std=1e-3)) ** 2).mean())(w)
        return w - 0.1 * g

    f = ost.compile(step, precision="auto", tolerance=1e-2, donate=("w",))
    x, w, _ = arrays()
    state = ost.asarray(w)
    for _ in range(9):
        before, state = state, f(state, x)
        with pytest.raises(Exception, match=r"given away|donate"):
            np.asarray(before)
    assert set(chosen(f)) <= set("bh")
    assert np.linalg.norm(np.asarray(state)) < np.linalg.norm(w)


def test_the_worst_results_are_told() -> None:
    weights = [numbers(9, 9, seed=k) for k in range(6)]
    f = ost.compile(lambda *ws: [w @ w for w in ws], precision="auto", tolerance=0.1)
    f(*weights)
    (line,) = [x for x in f.plan.report if "beside float64" in x]
    assert line.endswith("), less of 2 others")
    found = [float(part.split(" of result")[0].split(" ")[-1]) for part in line.split(",")[:4]]
    assert found == sorted(found, reverse=True)


def test_functions_without_products() -> None:
    f = ost.compile(lambda x: (ost.exp(x), x, x.argmax()), precision="auto")
    made = f(numbers(9))
    np.testing.assert_allclose(np.asarray(made[0]), np.exp(numbers(9)), rtol=1e-6)
    assert chosen(f) == ""
    assert "rounded   0 of 0 products" in f.plan.explain()


automatic = ost.compile(net, precision="auto", tolerance=0.02)


def test_it_is_pickled() -> None:
    again = pickle.loads(pickle.dumps(automatic))
    assert (again.precision, again.tolerance) == ("auto", 0.02)
    options: Any = automatic.__class__.__reduce__(ost.compile(lambda x: x, precision="auto"))[1][1]
    assert options["tolerance"] == 1e-3
