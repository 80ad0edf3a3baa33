"""Calls of compiled functions that find their entry at one look: they mean what the first call
meant, whatever form the arguments have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.compiled import CompiledFunction
from tests.helpers import counts_traces
from tests.sessions import use


@pytest.fixture(params=[(1,), (3,)])
def workers(request: pytest.FixtureRequest) -> Iterator[None]:
    with use(request.param):
        yield


@dataclass
class Layer:
    w: Any
    rate: float = 0.5


def ones(k: float = 1.0) -> Any:
    x = ost.asarray(np.full((4, 2), k), split=0)
    ost.evaluate(x + 0)
    return x


def at_one_look(f: CompiledFunction[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function, failing where one look is not enough."""

    def never(*args: Any) -> Any:
        raise AssertionError("a second look")

    def call(*args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(f, "_entry", never)
            return f(*args, **kwargs)

    return call


def body(p: Any, x: Any, rate: float = 0.25, *, sign: int = 1, mode: str = "add") -> Any:
    y = p["a"].w * p["b"][0] * rate * sign + p["a"].rate
    return {"y": y + x if mode == "add" else y - x, "n": None}


def expected(p: Any, x: Any, rate: float = 0.25, *, sign: int = 1, mode: str = "add") -> Any:
    y = np.asarray(p["a"].w) * np.asarray(p["b"][0]) * rate * sign + p["a"].rate
    return y + np.asarray(x) if mode == "add" else y - np.asarray(x)


def inputs(k: float, swap: bool = False) -> Any:
    a, b = Layer(ones(k), k / 2), [ones(k + 1), None]
    return {"b": b, "a": a} if swap else {"a": a, "b": b}


FORMS: list[Any] = [
    lambda f, k: f(inputs(k), ones(3 * k)),
    lambda f, k: f(inputs(k, swap=True), ones(3 * k), 0.125 * k),
    lambda f, k: f(inputs(k), x=ones(3 * k), rate=2.0 * k),
    lambda f, k: f(x=ones(3 * k), sign=-1, p=inputs(k)),
    lambda f, k: f(sign=k, mode="less", rate=float(k), x=ones(k), p=inputs(k, swap=True)),
]


@counts_traces
@pytest.mark.parametrize("form", range(len(FORMS)))
def test_every_form_of_a_call(workers: None, form: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f = ost.compile(body)
    for k, g in ((1, f), (2, at_one_look(f, monkeypatch)), (5, at_one_look(f, monkeypatch))):
        found = FORMS[form](g, k)
        assert found["n"] is None
        np.testing.assert_allclose(np.asarray(found["y"]), FORMS[form](expected, k))


def test_forms_mix(workers: None) -> None:
    f = ost.compile(body)
    for k in (1, 2, 3):
        for form in FORMS:
            np.testing.assert_allclose(np.asarray(form(f, k)["y"]), form(expected, k))
    assert len(f.misses) == len({m.parts["mode"] for m in f.misses}) == 2


@counts_traces
def test_values_that_matter(workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    f = ost.compile(lambda x, n, flip, by: x.reshape(n, -1) * (-by if flip else by))
    x = ones(2.0)
    for n, flip, by in ((4, True, 1.0), (2, True, 1.0), (2, False, 1.0)):
        f(x, n, flip, by)
    look = at_one_look(f, monkeypatch)
    for n, flip, by in ((2, False, 4.0), (4, True, 5.0), (2, True, 0.5)):
        y = np.asarray(look(x, n, flip, by))
        assert (y.shape[0], y[0, 0]) == (n, -2 * by if flip else 2 * by)
    assert np.asarray(f(x, 1, 0, 2.0)).shape == (1, 8)
    assert len(f.misses) == 4
    g = ost.compile(lambda x, scale: x * (1 if scale > 0 else 2) * np.copysign(1, float(scale)))
    assert [np.asarray(g(x, s))[0, 0] for s in (0.0, -0.0, 0.0, -0.0)] == [4.0, -4.0, 4.0, -4.0]


def test_arrays_of_another_session() -> None:
    """They are moved, and never taken for this session's own."""
    f = ost.compile(lambda x: x + 1)
    with ost.connect():
        theirs = f(ost.zeros(3))
        with ost.connect():
            ours = f(ost.ones(3) * 5)
            assert np.asarray(f(ours)).tolist() == [7.0] * 3
            assert np.asarray(f(theirs)).tolist() == [2.0] * 3
        assert np.asarray(f(theirs)).tolist() == [2.0] * 3
        with ost.connect(workers=2):
            assert np.asarray(f(theirs)).tolist() == [2.0] * 3


def test_a_gradient_looks_inside(workers: None) -> None:
    """Also where the argument was read on the way, so that it has a value and a history."""
    f = ost.compile(lambda x: (x * x).sum())
    f(ones(3.0))

    def outer(x: Any) -> Any:
        y = x * 2
        float(y.sum())
        return f(y)

    np.testing.assert_allclose(np.asarray(ost.grad(outer)(ones(3.0))), 24.0)


def helper(x: Any) -> Any:
    return x * RATE + CONFIG["shift"][0]


RATE = 1.0
CONFIG: dict[str, Any] = {"shift": [0.0]}


def test_what_is_around_a_function_may_change(
    workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its closure, its module, functions of the module that it calls, functions within it."""

    def other(x: Any) -> Any:
        return x - 1

    scale = ones(2.0)
    mode = "plus"
    functions = {
        "closure": ost.compile(lambda x: x * scale + (1 if mode == "plus" else 0)),
        "module": ost.compile(lambda x: x * RATE),
        "helper": ost.compile(lambda x: helper(x)),
        "within": ost.compile(lambda x: ost.repeat(2, lambda s: s * RATE, x)),
        "compiled": ost.compile(lambda x: inner(x)),
    }
    inner = ost.compile(lambda x: helper(x) * RATE)

    def check(**expected: float) -> None:
        for name, f in functions.items():
            for _ in range(2):
                assert float(f(ones())[0, 0]) == expected[name], name

    check(closure=3, module=1, helper=1, within=1, compiled=1)
    misses = [len(f.misses) for f in functions.values()]
    check(closure=3, module=1, helper=1, within=1, compiled=1)
    assert [len(f.misses) for f in functions.values()] == misses
    monkeypatch.setitem(globals(), "RATE", 2.0)
    check(closure=3, module=2, helper=2, within=4, compiled=4)
    CONFIG["shift"][0] = 5.0
    check(closure=3, module=2, helper=7, within=4, compiled=14)
    scale, mode = ones(4.0), "minus"
    check(closure=4, module=2, helper=7, within=4, compiled=14)
    monkeypatch.setitem(globals(), "helper", other)
    check(closure=4, module=2, helper=0, within=4, compiled=0)
    CONFIG["shift"][0] = 0.0


def test_names_that_come_later(workers: None) -> None:
    """What a function uses need not exist when it is compiled."""
    f = ost.compile(lambda x: x * later)
    later = 2.0
    assert float(f(ones())[0, 0]) == 2
    later = 3.0
    assert float(f(ones())[0, 0]) == 3


def test_pairs_of_keys(workers: None) -> None:
    """Trees of the same leaves are told apart."""
    f = ost.compile(lambda t: ost.tree_map(lambda v: v + 1, t))
    x, y = ones(1.0), ones(2.0)
    for tree in ((x, [y]), ([x], y), (x, (y,)), {"a": x, "b": y}, {"b": x, "a": y}, [x, y, None]):
        for _ in range(2):
            found = f(tree)
            wanted = ost.tree_map(lambda v: np.asarray(v) + 1, tree)
            assert str(ost.tree_map(np.asarray, found)) == str(wanted)
    assert len(f.misses) == 5
