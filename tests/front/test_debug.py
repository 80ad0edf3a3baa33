"""Printing in compiled code, and looking for NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, ExecutionError, NaNError
from tests.helpers import on

X = np.arange(3.0)
Lines = Callable[[], list[str]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """What was printed since it was asked last."""
    return lambda: capsys.readouterr().out.splitlines()


def say(text: str, x: Any) -> Any:
    ost.debug.print(text, x)
    return x


def test_each_run_prints_once_and_in_order(lines: Lines) -> None:
    """Whether or not anything is made of it, and what is no array is text."""

    def f(x: Any, k: Any) -> Any:
        ost.debug.print("{} {{}} {:.2f} k={k}", x, x.sum(), k=k)
        ost.debug.print("{!s} {}", x * 2, (x[0], {"z": "{3}"}))
        ost.debug.print("none")
        return x + 1

    wanted = ["[0. 1. 2.] {} 3.00 k=4", "[0. 2. 4.] (0.0, {'z': '{3}'})", "none"]
    f(X, 4)  # a NumPy array is as good
    assert lines() == wanted
    compiled = ost.compile(f)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(X, 4), X + 1)
        assert lines() == wanted
    with on(3):
        compiled(ost.asarray(X, split=0), 4)
    assert lines() == wanted
    nothing = ost.compile(lambda x: ost.debug.print("{}", x))
    assert nothing(X) is None
    assert nothing(X + 1) is None
    assert lines() == ["[0. 1. 2.]", "[1. 2. 3.]"]


def in_loops(x: Any) -> Any:
    ost.debug.print("begin")
    y = ost.repeat(2, lambda s: say("turn {:.1f}", s) * 0.5, x)
    ost.debug.print("middle")
    ost.repeat(2, lambda _: ost.debug.print("again"), None)
    ost.repeat(2, lambda _: ost.debug.print("again"), None)
    ost.scan(lambda s, x: (s, ost.debug.print("scan {}", x)), None, x)
    ost.while_loop(lambda k: say("test {}", k) < 1, lambda k: k + 1, 0)
    for word, limit in (("small", 100), ("large", -100)):
        ost.cond(x.sum() < limit, lambda w=word: ost.debug.print(w), lambda: None)
    ost.debug.print("end")
    return y


def test_loops_and_conditions(lines: Lines) -> None:
    wanted = ["begin", "turn [0.0 1.0 2.0]", "turn [0.0 0.5 1.0]", "middle", *["again"] * 4]
    wanted += ["scan 0.0", "scan 1.0", "scan 2.0", "test 0", "test 1", "small", "end"]
    for f in (in_loops, ost.compile(in_loops)):
        np.testing.assert_array_equal(f(X), X / 4)
        assert lines() == wanted


def loss(w: Any) -> Any:
    ost.debug.print("w {:.0f}", w)
    z = ost.repeat(2, lambda s: say("loop {:.0f}", s) * w, 1.0)
    z = ost.checkpoint(lambda s: say("checkpoint {:.0f}", s) * w)(z)
    z = ost.cond(w > 0, lambda s: say("cond {:.0f}", s) * w, lambda s: s, z)
    return ost.vmap(lambda x: say("vmap {:.0f}", x * z))(X).sum()


LOSS = ["w 2", "loop 1", "loop 2", "checkpoint 4", "cond 8", "vmap 0", "vmap 16", "vmap 32"]


@pytest.mark.parametrize(
    "mode",
    [
        ost.grad,
        ost.jacobian,
        ost.hessian,
        lambda f: lambda w: ost.jvp(f, (w,), (1.0,)),
        lambda f: lambda w: ost.vjp(f, w)[1](1.0),
    ],
)
def test_gradients_print_once(mode: Any, lines: Lines) -> None:
    """What they compute again is not printed again."""
    ost.evaluate(mode(loss)(2.0))
    assert sorted(lines()) == sorted(LOSS)
    ost.evaluate(ost.compile(mode(loss))(2.0))
    assert lines() == LOSS


def test_vmap_prints_each(lines: Lines) -> None:
    def f(x: Any) -> Any:
        ost.debug.print("first {}", x)
        ost.debug.print("once")
        ost.repeat(2, lambda s: say("turn {}", s) + x, x * 0)

    wanted = ["first 0.0", "first 1.0", "once", *["turn 0.0"] * 3, "turn 1.0"]
    for g in (ost.vmap(f), ost.compile(ost.vmap(f))):
        g(X[:2])
        assert lines() == wanted
    ost.evaluate(ost.compile(ost.vmap(ost.grad(loss)))(ost.asarray([2.0])))
    assert lines() == LOSS


def test_plans_keep_what_they_print(lines: Lines, tmp_path: Path) -> None:
    f = ost.compile(lambda x: say("{:.1f}", x) * 2)
    f(X)
    f.plan.to_file(tmp_path / "f.plan")
    lines()
    made = ost.run(ost.Plan.from_file(tmp_path / "f.plan"), X)
    np.testing.assert_array_equal(made, X * 2)
    assert lines() == ["[0.0 1.0 2.0]"]


def test_formats() -> None:
    """Of elements, and a text that does not fit says so at its line."""
    x = ost.asarray(X)
    for text, values, error in (
        ("{} {}", (x,), ArgumentError),
        ("loss", (x,), ArgumentError),
        (x, (), ArgumentError),
        ("{:.3000f}", (x,), ArgumentError),
        ("{:d}", (x,), ExecutionError),
    ):
        with pytest.raises(error, match=r"test_debug.py:\d+"):
            ost.debug.print(text, *values)  # type: ignore[arg-type]


def test_elements_have_formats(lines: Lines) -> None:
    for dtype in (ost.float32, ost.bfloat16, ost.float16):
        ost.debug.print("{:.2f} {:>5}", ost.asarray(X, dtype=dtype), ost.asarray(True))
        assert lines() == ["[0.00 1.00 2.00]     1"]


def test_nan_within() -> None:
    """Plans that were bound before look for it, too, and no more when it is over."""
    f = ost.compile(lambda x: ost.log(x) + 1)
    f(-X - 1)
    with ost.debug.nans(), pytest.raises(NaNError, match=r"log \(.*test_debug.py:\d+\)"):
        np.asarray(f(-X - 1))
    assert np.isnan(np.asarray(f(-X - 1))).all()
