"""Compiled functions: signatures, numbers, pytrees, hits and misses."""

from __future__ import annotations

import math
import re
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import scipy.special

import ostinato as ost
from ostinato.errors import (
    ArgumentError,
    AssignmentError,
    DataDependentShapeError,
    DTypeError,
    ShapeError,
    TracedValueError,
)
from tests.helpers import counts_traces
from tests.sessions import forget_plans, use


@pytest.fixture(autouse=True)
def _one_worker() -> Iterator[None]:
    with use():
        yield


@counts_traces
def test_a_changing_number_never_misses() -> None:
    calls = []

    @ost.compile
    def step(w: Any, lr: float) -> Any:
        calls.append("traced")
        return w - lr * w

    w = ost.ones(3, dtype=ost.float32)
    for k in range(10):
        w = step(w, 0.1 / (k + 1))
    assert len(step.misses) == 1
    assert step.hits == 9
    assert len(calls) == 1
    assert w.dtype == ost.float32, "a lifted number promotes no more than a number does"
    np.testing.assert_allclose(
        np.asarray(w), np.prod([1 - 0.1 / (k + 1) for k in range(10)]), rtol=1e-5
    )


def test_a_number_that_is_needed_moves_into_the_signature() -> None:
    traces = []

    @ost.compile
    def f(x: Any, n: int, scale: float) -> Any:
        traces.append((type(n), type(scale)))
        return x.reshape(n, -1) * scale

    x = ost.ones(12)
    assert f(x, 3, 1.0).shape == (3, 4)
    assert f(x, 3, 2.0).shape == (3, 4)
    assert f(x, 4, 2.0).shape == (4, 3)
    assert f(x, 3, 5.0).shape == (3, 4)
    assert len(f.misses) == 2, "one per n"
    assert traces[-1][0] is int
    assert "n: 3 -> 4" in ost.why_miss(f)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, n: x * n if n > 2 else x,
        lambda x, n: sum((x for _ in range(n)), x * 0),
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x[: n - 1],
        lambda x, n: x * np.ones(3)[n % 3],
        lambda x, n: ost.zeros(n).sum() + x,
        lambda x, n: x * float(n),
        lambda x, n: x * {1: 2, 3: 4}.get(int(n), 5),
        lambda x, n: x + len(f"{int(n):b}"),
    ],
)
def test_all_the_ways_to_need_a_number(body: Any) -> None:
    f = ost.compile(body)
    x = np.array([1.0, 2.0, 3.0])
    for n in (1, 3, 1, 3):
        np.testing.assert_allclose(
            np.asarray(f(ost.asarray(x), n)), np.asarray(body(ost.asarray(x), n))
        )
    assert len(f.misses) == 2


def test_derived_numbers_are_needed_too() -> None:
    @ost.compile
    def f(x: Any, a: int, b: int) -> Any:
        return x[: a * b + 1]

    assert f(ost.arange(10), 2, 3).shape == (7,)
    assert f(ost.arange(10), 2, 3).shape == (7,)
    assert len(f.misses) == 1


def test_kinds_of_numbers() -> None:
    f = ost.compile(lambda x, a: x * a)
    x = ost.ones(2, dtype=ost.int32)
    assert f(x, 2).dtype == ost.int32
    assert f(x, 2.0).dtype == ost.float64
    assert f(x, 2j).dtype == ost.complex128
    assert f(x, True).dtype == ost.int32
    assert len(f.misses) == 4
    assert f(ost.ones(2, dtype=ost.float32), 3).dtype == ost.float32
    assert f(ost.ones(2, dtype=ost.float32), 2j).dtype == ost.complex64
    assert f(ost.ones(2), 2**70).dtype == ost.float64


def test_bools_strings_none_and_objects_go_by_value() -> None:
    @ost.compile
    def f(x: Any, train: bool, mode: str, extra: Any = None) -> Any:
        if train:
            x = x * 2
        return getattr(ost, mode)(x) if extra is None else x + extra[0]

    x = ost.ones(2)
    assert float(f(x, True, "sum")) == 4
    assert float(f(x, False, "sum")) == 2
    assert float(f(x, False, "prod")) == 1
    assert np.asarray(f(x, False, "prod", (5, 6))).tolist() == [6, 6]
    assert len(f.misses) == 4
    f(x, train=False, mode="prod", extra=(7, 8))
    assert len(f.misses) == 4, "by keyword or by place is the same"


def test_static_arguments() -> None:
    @ost.compile(static=("k",))
    def f(x: Any, k: float) -> Any:
        assert isinstance(k, float)
        return x * k

    f(ost.ones(1), 1.5)
    f(ost.ones(1), 2.5)
    assert len(f.misses) == 2
    with pytest.raises(
        ArgumentError, match=r"f\(static=\).*got an array float64\[1\] for a static argument"
    ):
        f(ost.ones(1), ost.ones(1))
    for given in ((), (lambda x: x,)):
        with pytest.raises(ArgumentError, match=r"got an option donat=; needed .*; write donate="):
            ost.compile(*given, donat="x")  # type: ignore[call-overload]
    with pytest.raises(
        ArgumentError, match=r"compile\(static=\).*got 'z'; needed a parameter of x, k"
    ):
        ost.compile(static="z")(lambda x, k: x)


Point = namedtuple("Point", "x y")


@dataclass
class Model:
    w: Any
    name: str = "m"


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any


def test_pytrees_in_and_out() -> None:
    @ost.compile
    def f(tree: Any) -> Any:
        return {
            "list": [tree["a"] + 1, (tree["b"][0], None)],
            "point": Point(tree["p"].x * 2, tree["p"].y),
            "model": Model(tree["m"].w * 3, tree["m"].name),
            "frozen": Frozen(tree["f"].b, tree["f"].a),
            "number": 7,
            "text": "done",
        }

    tree = {
        "b": [ost.ones(1)],
        "a": ost.zeros(2),
        "p": Point(ost.ones(3), 4.0),
        "m": Model(ost.ones(2)),
        "f": Frozen(ost.zeros(1), 2),
    }
    y = f(tree)
    assert np.asarray(y["list"][0]).tolist() == [1, 1]
    assert y["list"][1][1] is None
    assert isinstance(y["point"], Point)
    assert np.asarray(y["model"].w).tolist() == [3, 3]
    assert (y["model"].name, y["number"], y["text"]) == ("m", 7, "done")
    assert isinstance(y["frozen"], Frozen)
    assert np.asarray(y["frozen"].b).tolist() == [0]
    assert y["list"][1][0] is tree["b"][0], "what passes through is the same array"
    f({k: tree[k] for k in reversed(list(tree))})
    assert len(f.misses) == 1, "the order in which a dict was filled makes no difference"
    f({**tree, "m": Model(ost.ones(2), "other")})
    assert len(f.misses) == 2
    f(OrderedDict(tree))
    assert len(f.misses) == 3


def test_variable_arguments_and_defaults() -> None:
    @ost.compile
    def f(x: Any, *more: Any, scale: float = 2.0, **named: Any) -> Any:
        total = x
        for m in more:
            total = total + m
        return (total + named.get("z", 0)) * scale

    one = ost.ones(1)
    assert float(f(one).sum()) == 2
    assert float(f(one, one, one).sum()) == 6
    assert float(f(one, one, z=one, scale=3.0).sum()) == 9
    with pytest.raises(ArgumentError, match=r"f\(\).*missing a required argument: 'x'"):
        f()


def test_numpy_arrays_and_numpy_numbers() -> None:
    f = ost.compile(lambda x, y: x @ y)
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(np.asarray(f(a, a.T)), a @ a.T)
    a[0, 0] = 100
    np.testing.assert_allclose(np.asarray(f(a, a.T)), a @ a.T)
    assert len(f.misses) == 1
    g = ost.compile(lambda x: x + 1)
    assert g(np.float32(1)).dtype == ost.float32
    assert g(np.arange(3, dtype=">f8")).dtype == ost.float64


def test_methods() -> None:
    class Layer:
        def __init__(self, w: Any) -> None:
            self.w = w

        @ost.compile
        def forward(self, x: Any) -> Any:
            return x @ self.w

    a, b = Layer(ost.ones((2, 2))), Layer(ost.zeros((2, 2)))
    x = ost.ones((1, 2))
    assert np.asarray(a.forward(x)).tolist() == [[2, 2]]
    assert np.asarray(b.forward(x)).tolist() == [[0, 0]]


def test_what_is_used_from_around_is_watched() -> None:
    k, w = 2.0, ost.ones(3)

    @ost.compile
    def f(x: Any) -> Any:
        return (x * k + w).sum()

    x = ost.ones(3)
    assert float(f(x)) == 9
    k = 3.0
    assert float(f(x)) == 12
    w = ost.zeros(3)
    assert float(f(x)) == 9
    assert float(f(x)) == 9
    assert len(f.misses) == 3
    assert "what it uses from around it changed:\n  w: an array" in ost.why_miss(f)


def test_captured_arrays_are_operands_not_constants() -> None:
    big = ost.asarray(np.random.default_rng(0).normal(size=(100, 100)))
    f = ost.compile(lambda x: big @ x)
    f(ost.ones((100, 2)))
    assert len(f.plan.traced.inputs) == 2
    pending = ost.ones(4) * 3
    g = ost.compile(lambda x: x + pending)
    assert np.asarray(g(ost.ones(4))).tolist() == [4] * 4
    assert pending._operand is not None


def test_nested_compiled_functions_are_one_plan() -> None:
    inner = ost.compile(lambda x: ost.sin(x) * 2)
    outer = ost.compile(lambda x: inner(x) + inner(x + 1))
    x = ost.ones(3)
    np.testing.assert_allclose(np.asarray(outer(x)), 2 * np.sin(1) + 2 * np.sin(2))
    assert not inner.misses
    g = ost.grad(lambda x: inner(x).sum())(x)
    np.testing.assert_allclose(np.asarray(g), 2 * np.cos(1))
    assert not inner.misses


def test_a_gradient_outside_feeds_a_compiled_function() -> None:
    f = ost.compile(lambda g: g * 2)
    g = ost.grad(lambda x: (x * x).sum())(ost.ones(3))
    assert np.asarray(f(g)).tolist() == [4, 4, 4]
    assert len(f.misses) == 1


def test_random_draws_differ_from_call_to_call_and_repeat_with_a_seed() -> None:
    f = ost.compile(
        lambda x: x + ost.random.uniform(x.shape, dtype=ost.float64) + ost.random.uniform(x.shape)
    )
    ost.random.seed(3)
    first = [np.asarray(f(ost.zeros(4))).tolist() for _ in range(3)]
    assert first[0] != first[1] != first[2]
    ost.random.seed(3)
    assert [np.asarray(f(ost.zeros(4))).tolist() for _ in range(3)] == first
    assert len(f.misses) == 1
    g = ost.compile(lambda x, s: ost.nn.dropout(x, 0.5, seed=s))
    a, b, c = (np.asarray(g(ost.ones(50), s)).tolist() for s in (1, 2, 1))
    assert a == c != b
    assert len(g.misses) == 1


def test_results_of_a_call_do_not_change_with_the_next() -> None:
    f = ost.compile(lambda x: (x + 1, x * 2))
    x = ost.ones(3)
    a = f(x)
    b = f(a[0])
    c = f(b[1])
    assert [np.asarray(v).tolist() for v in (*a, *b, *c)] == [
        [2] * 3,
        [2] * 3,
        [3] * 3,
        [4] * 3,
        [5] * 3,
        [8] * 3,
    ]


def test_a_function_of_nothing_and_of_no_arrays() -> None:
    f = ost.compile(lambda: ost.arange(3))
    assert np.asarray(f()).tolist() == [0, 1, 2]
    g = ost.compile(lambda a, b: a + b)
    assert float(g(1, 2.5)) == 3.5
    assert float(g(2, 3.5)) == 5.5
    assert len(g.misses) == 1
    h = ost.compile(lambda x: (x, 5, None))
    assert h(3)[1:] == (5, None)


def test_the_same_result_twice_is_two_arrays() -> None:
    f = ost.compile(lambda x: (x + 1,) * 2)
    a, b = f(ost.ones(2))
    assert a._operand is not b._operand
    assert np.asarray(a).tolist() == np.asarray(b).tolist()


# -- plain Python ----------------------------------------------------------------------------------
def test_a_plain_loop_hits_from_its_second_turn() -> None:
    with ost.connect() as session:
        x = ost.ones(10)
        sizes = []
        for _ in range(6):
            x = x * 0.5 + 1
            y = ost.tanh(x).sum()
            float(y)
            sizes.append(len(session.plans.plans))
        assert sizes[1:] == [sizes[1]] * 5
        assert x._term is None, "no history is kept"


def test_a_loop_that_reads_nothing_does_not_grow_without_end() -> None:
    with ost.connect() as session:
        x = ost.ones(10)
        for _ in range(3000):
            x = x * 0.5 + 1
        np.testing.assert_allclose(np.asarray(x), 2.0)
        assert max(len(p.traced.nodes) for p in session.plans.plans.values()) < 1500
        assert len(session.plans.plans) < 8


def test_what_is_held_on_the_way_is_computed_once() -> None:
    with ost.connect() as session:
        a = ost.ones(4) * 2
        b = ost.exp(a)
        c = b.sum()
        float(c)
        assert b._operand is not None
        assert a._operand is not None
        assert len(session.plans.plans) == 1


def test_what_nobody_holds_is_not_kept() -> None:
    with ost.connect() as session:
        y = (ost.exp(ost.ones(4) * 2) + 1).sum()
        float(y)
        (plan,) = session.plans.plans.values()
        assert len(plan.results) == 1


def test_evaluate_takes_trees() -> None:
    a, b = ost.ones(2) + 1, ost.ones(3) * 2
    ost.evaluate({"a": a}, [b, 3, None])
    assert a._operand is not None
    assert b._operand is not None


# -- errors while tracing ------------------------------------------------------------------------------
def traced(body: Any, *args: Any) -> Any:
    return ost.compile(body)(*(args or (ost.ones(4),)))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda x: 1 if x.sum() > 0 else 2, TracedValueError, r"bool\(\) \(.*test_compiled.py:\d+\): got bool\[\] while <lambda> is traced.*use ost.where or ost.cond"),
        (lambda x: float(x.sum()), TracedValueError, r"float\(\)"),
        (lambda x: np.asarray(x), TracedValueError, r"reading an array \(.*use ost's functions, ost.callback\(f, ost.spec"),
        (lambda x: scipy.ndimage.gaussian_filter(x, 1), TracedValueError, r"reading an array in scipy \(.*test_compiled.py:\d+\).*ost.callback"),
        (lambda x: np.testing.assert_allclose(x, 1), TracedValueError, r"reading an array \(.*test_compiled.py:\d+\)"),
        (lambda x: scipy.special.airy(x), ArgumentError, r"airy of another library .*write ost.callback\(f, ost.spec"),
        (lambda x: scipy.special.expit(x), ArgumentError, r"write ostinato.special.expit, or ost.callback"),
        (lambda x: np.negative.at(x, [0]), ArgumentError, r"np.negative.at \(.*test_compiled.py:\d+\): got an ostinato array; needed"),
        (lambda x: np.spacing(x), ArgumentError, r"np.spacing"),
        (lambda x: np.sin(x, dtype="f4"), ArgumentError, r"np.sin .*got dtype= and an"),
        (lambda x: range(x.sum()), DTypeError, r"index \(.*got float64; needed an integer"),
        (lambda x: x[x > 0], DataDependentShapeError, r"x\[mask\].*got bool\[4\] while.*shape does not depend on data; use ost.where\(mask, x, 0\)"),
        (lambda x: ost.nonzero(x), DataDependentShapeError, r"nonzero.*pass size="),
        (lambda x: ost.bincount(x.astype(int)), DataDependentShapeError, r"bincount .*pass length="),
        (lambda x: ost.segment_sum(x, x.astype(int)), DataDependentShapeError, r"segment_sum .*pass num_segments="),
        (lambda x: ost.histogram(x, "fd"), DataDependentShapeError, r"bins by a rule .*bins=20"),
        (lambda x: ost.unique_values(x), DataDependentShapeError, r"unique_values.*pass size="),
        (lambda x: ost.unique_counts(x), DataDependentShapeError, r"unique_counts"),
        (lambda x: x.layout, TracedValueError, r"traced"),
        (lambda x: x @ ost.ones((3, 3)), ShapeError, r"matmul \(.*test_compiled.py:\d+\)"),
        (lambda x: ost.grad(lambda y: y)(x), ost.errors.GradientError, r"got a result float64\[4\]; needed one real"),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_what_to_do(
    body: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        traced(body)


def test_an_error_leaves_nothing_half_done() -> None:
    fail = True

    def body(x: Any) -> Any:
        y = ost.sin(x)
        if fail:
            raise RuntimeError("not today")
        return y

    f = ost.compile(body)
    with pytest.raises(RuntimeError, match="not today"):
        f(ost.zeros(2))
    fail = False
    assert np.asarray(f(ost.zeros(2))).tolist() == [0, 0]


class Reader:
    """Gives numbers one after the other, and never comes to the end."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = iter(numbers)
        self.itself: Any = None

    def next(self, x: Any) -> Any:
        return x * next(self.numbers)


@pytest.mark.parametrize("times", [1, 3])
def test_what_functions_within_know_goes_with_the_trace(times: int) -> None:
    """Objects of the trace that functions of the trace have as free variables, and that have each other."""

    def body(numbers: Any, x: Any) -> Any:
        first, second = Reader(numbers), Reader(numbers)
        first.itself = second  # so that one goes after the other

        def step(x: Any) -> Any:
            return first.next(x) + second.next(x)

        for _ in range(times):
            x = step(x)
        return [x, *(step(v) for v in [x])]

    numbers = [ost.asarray(float(k)) for k in range(1, 9)]
    made = ost.compile(body)(numbers, ost.asarray(1.0))
    assert [float(v) for v in made] == [float(v) for v in body(numbers, ost.asarray(1.0))]


def test_an_array_that_leaks_out_of_a_trace() -> None:
    leaked: list[Any] = []

    def keep(x: Any) -> Any:
        leaked.append(x * 2)
        return x

    with pytest.raises(AssignmentError, match=r"vmap of keep.*kept in a list.*return it"):
        ost.vmap(keep)(ost.ones(2))
    with pytest.raises(TracedValueError, match="vmap of keep is traced"):
        np.asarray(leaked[0])
    with pytest.raises(
        TracedValueError,
        match=r"an array float64.* of the tracing of vmap of keep.*return the array",
    ):
        ost.compile(lambda x: x + leaked[0])(ost.ones(2))
    assert "traced" in repr(leaked[0])


def test_unhashable_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"got a set as an argument; needed arrays, numbers"):
        ost.compile(lambda x: x)({1, 2})


def test_plan_before_the_first_call() -> None:
    f = ost.compile(lambda x: x)
    with pytest.raises(ArgumentError, match="not called yet; call it once"):
        _ = f.plan
    assert ost.why_miss(f) == "<lambda> has not been called yet."


def test_why_miss_uses_the_users_names() -> None:
    @ost.compile
    def fit(params: Any, x: Any, rate: float, mode: str = "fast") -> Any:
        return params["w"][0] * x.sum() * rate

    p = {"w": [ost.ones(2)]}
    fit(p, ost.ones((3, 2)), 0.1)
    assert ost.why_miss(fit) == "fit was called for the first time."
    fit(p, ost.ones((4, 2)), 0.1)
    assert "x.shape: (3, 2) -> (4, 2)" in ost.why_miss(fit)
    fit(p, ost.ones((4, 2), dtype=ost.float32), 0.1)
    assert "x.dtype: 'float64' -> 'float32'" in ost.why_miss(fit)
    fit({"w": [ost.ones(5)]}, ost.ones((4, 2)), 0.1)
    assert "params['w'][0].shape: (2,) -> (5,)" in ost.why_miss(fit)
    fit(p, ost.ones((4, 2)), 0.1, "slow")
    assert "mode: 'fast' -> 'slow'" in ost.why_miss(fit)
    fit(p, ost.ones((4, 2)), 1)
    assert "rate.type: 'float' -> 'int'" in ost.why_miss(fit)
    assert "5 plans" not in repr(fit)
    assert "6 plans" in repr(fit)


def test_the_same_program_in_two_functions_is_one_plan() -> None:
    with ost.connect() as session:
        f, g = ost.compile(lambda x: ost.sin(x) + 1), ost.compile(lambda y: ost.sin(y) + 1)
        f(np.ones(3))
        g(np.ones(3))
        assert g.plan.original is f.plan
        assert g.misses[-1].source == "memory"
        assert len(session.plans.plans) == 1


def test_a_numpy_array_that_comes_back_is_not_the_callers() -> None:
    same = ost.compile(lambda x: (x, x + 1))
    x = np.arange(3.0)
    y, _ = same(x)
    x[:] = 9
    np.testing.assert_array_equal(np.asarray(y), [0, 1, 2])


class Layer:
    def __init__(self, weight: float) -> None:
        self.weight = ost.ones(3) * weight
        self.scale = 1.0

    @property
    def factor(self) -> float:
        return self.scale * 2

    def __call__(self, x: Any) -> Any:
        return x * self.weight * self.factor


class Network:
    rate = 1.0

    def __init__(self) -> None:
        self.first, self.others = Layer(2.0), [Layer(1.0)]

    @ost.compile
    def __call__(self, x: Any) -> Any:
        for layer in (self.first, *self.others):
            x = layer(x)
        return x * self.rate


def test_what_a_method_reads_of_objects_is_watched() -> None:
    model, x = Network(), ost.ones(3)
    around = ost.compile(lambda x: model(x))
    expected = 8.0

    def check() -> None:
        for _ in range(2):
            assert float(Network.__call__(model, x)[0]) == expected
            assert float(around(x)[0]) == expected

    def change(thing: Any, name: str, value: Any, factor: float) -> None:
        nonlocal expected
        setattr(thing, name, value)
        expected *= factor
        check()

    check()
    assert len(Network.__call__.misses) == 1
    change(model.first, "weight", ost.ones(3) * 6, 3)
    change(model.others[0], "scale", 5.0, 5)
    change(model, "rate", 0.5, 0.5)
    change(model, "first", Layer(1.0), 1 / 6)
    model.unread = 7  # type: ignore[attr-defined]
    misses = len(Network.__call__.misses)
    check()
    assert len(Network.__call__.misses) == misses


def test_what_is_read_of_a_module_is_watched() -> None:
    config = ModuleType("config")
    config.rate = 2.0  # type: ignore[attr-defined]
    f = ost.compile(lambda x: x * config.rate)
    assert float(f(ost.ones(()))) == 2
    config.rate = 3.0  # type: ignore[attr-defined]
    assert float(f(ost.ones(()))) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "same"}, "got numerics='same'; needed 'same-plan' or"),
        ({"memory_limit": "4GB"}, "got memory_limit='4GB'; needed a whole number of bytes"),
        ({"memory_limit": 1e9}, "got memory_limit=1000000000.0; needed a whole number"),
        ({"memory_limit": -1}, "got memory_limit=-1; needed a whole number"),
    ],
)
def test_a_policy_that_is_none_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ost.compile(**options)(lambda x: x)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ost.connect(**options)


def _later(x: Any) -> Iterator[Any]:
    yield x


@pytest.mark.parametrize("function", [5, max, dict, _later])
def test_what_is_no_function_of_arrays_is_refused(function: Any) -> None:
    with pytest.raises(
        ArgumentError, match="needed a function of arrays whose parameters are known"
    ):
        ost.compile(function)


def test_a_plan_is_for_arrays_with_values() -> None:
    f = ost.compile(lambda x: x + 1)
    with pytest.raises(
        TracedValueError, match=r"plan_for .* call it outside of compiled functions"
    ):
        ost.compile(lambda x: f.plan_for(x))(ost.ones(3))


def test_errors_name_the_line_of_who_asked_also_where_somebody_else_ran_the_plan(
    tmp_path: Any,
) -> None:
    """Here one from a file, which the cache of plans does not have."""
    made = ost.compile(lambda a: ost.linalg.inv(a))
    with use((1,), numerics="fast"):
        made.plan_for(ost.ones((2, 5, 5))).to_file(tmp_path / "plan")
        forget_plans()
        other = ost.Plan.from_file(tmp_path / "plan")
        with pytest.raises(ost.errors.LinAlgError):
            np.asarray(ost.run(other, ost.zeros((2, 5, 5))))
        again = ost.compile(lambda b: ost.linalg.inv(b))  # the line
        with pytest.raises(ost.errors.LinAlgError) as caught:
            np.asarray(again(ost.zeros((2, 5, 5))))
    assert f"test_compiled.py:{again.function.__code__.co_firstlineno})" in str(caught.value)
