"""What a compiled function writes outside of itself is written by each call, as Python would: each case is a function
with state, run as it is and compiled, whose results and state are the same after every call."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import AssignmentError, StaleWarning
from tests.sessions import use

from .conftest import Tally

Steps = tuple[Callable[[Any], Any], Callable[[], Any]]  # a function with state, and that state
Compile = Callable[[Any], Any]


@pytest.fixture(autouse=True, params=[1, 3])
def _workers(request: pytest.FixtureRequest) -> Iterator[None]:
    with use((request.param,)):
        yield


def plain(x: Any) -> Any:
    """A state with the types of its numbers, and arrays as their values."""
    if isinstance(x, (ost.Array, np.ndarray)):
        return "array", str(x.dtype), np.asarray(x).tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple, collections.deque)):
        return [plain(v) for v in x]
    return type(x).__name__, x


def _attributes(c: Compile) -> Steps:
    n = types.SimpleNamespace(mean=ost.zeros(3), calls=0, rate=1.0, last=None, label="new")

    def step(x: Any) -> Any:
        n.mean = 0.9 * n.mean + 0.1 * x
        n.calls += 1
        n.rate *= 0.5
        n.last = x.sum()
        n.label = "used"
        n.many = n.calls > 2
        return n.mean * n.rate

    return c(step), lambda: vars(n)


def _global(c: Compile) -> Steps:
    module: dict[str, Any] = {"count": 0}
    exec("def step(x):\n global count\n count += 1\n return x + count", module)
    return c(module["step"]), lambda: module["count"]


def _nonlocal(c: Compile) -> Steps:
    t, m = 0, ost.zeros(3)

    def step(x: Any) -> Any:
        nonlocal t, m
        t += 1
        m = m + x
        return m * t

    return c(step), lambda: (t, m)


def _entries(c: Compile) -> Steps:
    state: dict[Any, Any] = {"k": 0, "m": ost.zeros(3), 7: 1.0}
    several = [ost.zeros(3), 0]

    def step(x: Any) -> Any:
        state["k"] += 1
        state["m"] = state["m"] + x
        state[7] /= 2
        several[0] = several[0] - x
        several[1] += 1
        return x + state["k"] + state[7] + several[0]

    return c(step), lambda: (state, several)


def _adam(c: Compile) -> Steps:
    class Adam:
        def __init__(self) -> None:
            self.t = 0
            self.m = self.v = ost.zeros(3)

        def update(self, p: Any, g: Any) -> Any:
            self.t += 1
            self.m = 0.9 * self.m + 0.1 * g
            self.v = 0.999 * self.v + 0.001 * g * g
            scale = (1 - 0.999**self.t) ** 0.5 / (1 - 0.9**self.t)
            return p - 0.1 * scale * self.m / (ost.sqrt(self.v) + 1e-8)

    adam, params = Adam(), [ost.ones(3)]

    def step(x: Any) -> Any:
        slope = ost.grad(lambda w: ((w - x) ** 2).sum())(params[0])
        params[0] = adam.update(params[0], slope)
        return params[0]

    return c(step), lambda: (adam.t, adam.m, adam.v, params)


def _running_mean_under_a_gradient(c: Compile) -> Steps:
    n = types.SimpleNamespace(mean=ost.zeros(()), calls=0)

    def step(x: Any) -> Any:
        def loss(w: Any) -> Any:
            y = w * x
            n.mean = 0.9 * n.mean + 0.1 * y.mean()
            n.calls += 1
            return (y * y).sum()

        return ost.grad(loss)(ost.ones(3))

    return c(step), lambda: vars(n)


def _method(c: Compile) -> Steps:
    class Model:
        made = 0

        def __init__(self) -> None:
            self.w = ost.ones(3)

        def step(self, x: Any) -> Any:
            self.w = self.w - 0.1 * x
            Model.made += 1
            return self.w * Model.made

    model = Model()
    step = c(Model.step)
    return (lambda x: step(model, x)), lambda: (model.w, Model.made)


def _slots(c: Compile) -> Steps:
    class Slotted:
        __slots__ = ("t", "w")

    s: Any = Slotted()
    s.w, s.t = ost.ones(3), 0

    def step(x: Any) -> Any:
        s.w = s.w + x
        s.t += 1
        return s.w

    return c(step), lambda: (s.w, s.t)


def _trees(c: Compile) -> Steps:
    o = types.SimpleNamespace(state={"m": ost.zeros(3), "t": 0, "name": "a"})

    def step(x: Any) -> Any:
        o.state = {"m": o.state["m"] + x, "t": o.state["t"] + 1, "name": o.state["name"]}
        return o.state["m"] * o.state["t"]

    return c(step), lambda: o.state


def _in_place(c: Compile) -> Steps:
    o = types.SimpleNamespace(m=ost.zeros(3))
    total = ost.zeros(3)

    def step(x: Any) -> Any:
        o.m += x
        o.m[0] = 7.0
        total[1:] += x[1:]
        return o.m * 2 + total

    return c(step), lambda: (o.m, total)


def _exchanged(c: Compile) -> Steps:
    o = types.SimpleNamespace(a=ost.zeros(3), b=ost.ones(3), k=1, l=2)

    def step(x: Any) -> Any:
        o.a, o.b = o.b, o.a
        o.k, o.l = o.l, o.k
        return o.a + x + o.k

    return c(step), lambda: vars(o)


def _initialised_late(c: Compile) -> Steps:
    o = types.SimpleNamespace(m=None)

    def step(x: Any) -> Any:
        if o.m is None:
            o.m = ost.zeros_like(x)
        o.m = o.m + x
        return o.m

    return c(step), lambda: o.m


def _decided_by(c: Compile) -> Steps:
    o = types.SimpleNamespace(t=0)

    def step(x: Any) -> Any:
        o.t += 1
        return x * 10 if o.t % 2 else x

    return c(step), lambda: o.t


def _appended(c: Compile) -> Steps:
    losses: list[Any] = []
    seen: list[Any] = []
    latest = collections.deque([ost.zeros(3)], maxlen=2)

    def step(x: Any) -> Any:
        losses.append(x.sum())
        seen.append(1)
        latest.append(x)
        return x * len(seen) + latest[0]

    return c(step), lambda: (losses, seen, latest)


def _containers(c: Compile) -> Steps:
    numbers, found, table = [3, 1, 2], {1}, {"a": 1, "b": 2}
    heap = [4, 5]
    many = [0] * 300
    grid = np.zeros(2)

    def step(x: Any) -> Any:
        numbers.insert(0, numbers.pop())
        numbers.append(numbers[0])
        numbers.sort()
        found.add(len(found) + 1)
        table.pop("a", None)
        table[f"n{len(table)}"] = len(found)
        heapq.heappush(heap, len(heap))
        many[7] += 1
        grid[0] += 1
        return x * numbers[0] + len(found) + len(table) + heap[0] + many[7] + float(grid[0])

    return c(step), lambda: (numbers, sorted(found), list(table.items()), heap, many[7], grid)


def _arguments(c: Compile) -> Steps:
    @dataclasses.dataclass
    class Momentum:
        t: int
        v: Any

    state: dict[str, Any] = {"k": 0, "deep": [ost.zeros(3)]}
    momentum = Momentum(0, ost.zeros(3))

    def step(x: Any, s: Any, m: Any, *, rate: float = 0.5) -> Any:
        s["k"] += 1
        s["deep"][0] = s["deep"][0] + x
        s["new"] = x * 2
        m.t += 1
        m.v = rate * m.v + x
        return x + s["k"] * m.t

    compiled = c(step)
    return (lambda x: compiled(x, state, m=momentum)), lambda: (state, momentum.t, momentum.v)


def _default(c: Compile) -> Steps:
    def step(x: Any, kept: Any = {"n": 0}) -> Any:  # noqa: B006
        kept["n"] += 1
        return x * kept["n"]

    kept = step.__defaults__
    return c(step), lambda: kept


def _kept_objects(c: Compile) -> Steps:
    o = types.SimpleNamespace(now=None, before=None)
    first, second = ost.ones(3), [1.0, 2.0]
    made: dict[str, Any] = {}

    def step(x: Any) -> Any:
        o.before, o.now = o.now, second
        if "grid" not in made:
            made["grid"] = np.arange(3.0)
        o.same = first
        return x * made["grid"] + second[0]

    return c(step), lambda: (o.now is second, o.before is o.now, o.same is first, list(made))


CASES = [f for n, f in sorted(globals().items()) if n.startswith("_") and n != "_workers"
         and getattr(f, "__annotations__", {}).keys() == {"c", "return"}]  # fmt: skip
TRACED_AGAIN = {  # whose traces depend on what they write; all others are traced once
    "_appended", "_containers", "_decided_by", "_default", "_initialised_late", "_kept_objects", "_arguments"
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.filterwarnings("ignore::ostinato.errors.StaleWarning")
def test_state_is_as_without_compiling(case: Callable[[Compile], Steps], tally: Tally) -> None:
    functions: list[Any] = []

    def compiled(function: Any) -> Any:
        functions.append(ost.compile(function))
        return functions[-1]

    step, state = case(lambda f: f)
    again, found = case(compiled)
    for k in range(5):
        x = ost.asarray([1.0, 2.0, 3.0 * k])
        wanted = plain(step(x)), plain(state())
        assert (plain(again(x)), plain(found())) == wanted, f"call {k}"
    tally("calls with state", 5)
    if case.__name__ not in TRACED_AGAIN:
        assert len(functions[0].misses) == 1


def test_a_trace_that_fails_leaves_nothing_behind() -> None:
    o = types.SimpleNamespace(t=0, m=ost.zeros(3))
    items = [1.0]

    @ost.compile
    def step(x: Any) -> Any:
        o.t += 1
        o.m = o.m + x
        o.m += 1
        items.append(2.0)
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        step(ost.ones(3))
    assert plain(vars(o)) == plain({"t": 0, "m": ost.zeros(3)})


def test_a_run_that_fails_leaves_the_state_as_it_was() -> None:
    o = types.SimpleNamespace(t=0, m=ost.ones(3))

    def refuse(x: Any) -> Any:
        raise ValueError("theirs")

    @ost.compile
    def step(x: Any) -> Any:
        o.t += 1
        o.m = ost.callback(refuse, ost.spec(x.shape, x.dtype), x)
        return x

    with pytest.raises(Exception, match="theirs"):
        np.asarray(step(ost.ones(3)))
    assert plain(vars(o)) == plain({"t": 0, "m": ost.ones(3)})


def test_planning_alone_writes_nothing() -> None:
    o = types.SimpleNamespace(t=0)

    @ost.compile
    def step(x: Any) -> Any:
        o.t += 1
        return x * o.t

    step.plan_for(ost.ones(3))
    assert o.t == 0
    step(ost.ones(3))
    assert (o.t, step.hits) == (1, 1)


def test_state_of_another_shape_or_type_is_planned_for() -> None:
    o = types.SimpleNamespace(m=ost.zeros(3), t=0)

    @ost.compile
    def step(x: Any) -> Any:
        o.m = o.m + 1.0
        o.t += 1
        return o.m.sum() * o.t

    step(ost.ones(2))
    o.m = ost.zeros((4, 2))
    assert float(step(ost.ones(2))) == 16.0
    assert "o.m" in ost.why_miss(step)
    o.t = 0.5
    assert float(step(ost.ones(2))) == 24.0
    assert type(o.t) is float
    assert len(step.misses) == 3


def test_two_objects_of_one_class_have_states_of_their_own() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        @ost.compile
        def step(self, x: Any) -> Any:
            self.n += 1
            return x * self.n

    a, b = Counter(), Counter()
    for c, wanted in ((a, 1), (b, 1), (a, 2), (a, 3), (b, 2)):
        assert float(c.step(ost.ones(()))) == wanted
    assert (a.n, b.n) == (3, 2)


def test_one_array_that_is_returned_and_stored() -> None:
    o = types.SimpleNamespace(last=None)

    @ost.compile
    def step(x: Any) -> Any:
        o.last = x * 2
        return o.last

    y = step(ost.ones(3))
    assert o.last is y
    step(ost.zeros(3))
    np.testing.assert_array_equal(np.asarray(y), np.full(3, 2.0))


INSIDE: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("repeat", lambda f, x: ost.repeat(3, f, x)),
    ("while_loop", lambda f, x: ost.while_loop(lambda c: c.sum() < 9, f, x)),
    ("cond", lambda f, x: ost.cond(x.sum() > 0, lambda: f(x), lambda: x)),
    ("checkpoint", lambda f, x: ost.checkpoint(f)(x)),
    ("vmap of ", lambda f, x: ost.vmap(f)(x)),
]


@pytest.mark.parametrize(("what", "run"), INSIDE, ids=[w for w, _ in INSIDE])
def test_an_assignment_within_a_loop_is_refused(what: str, run: Any) -> None:
    o = types.SimpleNamespace(t=0, m=ost.zeros(3))

    def count(c: Any) -> Any:
        o.t += 1
        return c * 2

    def keep(c: Any) -> Any:
        o.m = c
        return c * 2

    for body, name in ((count, "o.t"), (keep, "o.m")):
        with pytest.raises(AssignmentError, match=rf"{what}.*assigns to {name}.*return the new"):
            ost.compile(lambda x, body=body: run(body, x))(ost.ones(3))
        assert plain(vars(o)) == plain({"t": 0, "m": ost.zeros(3)})
    if what == "cond":  # whose branches take nothing that has no value
        return
    with pytest.raises(AssignmentError, match=rf"{what}.*kept in SimpleNamespace\.m.*return it"):
        run(keep, ost.ones(3))


def test_what_cannot_be_built_again_is_refused() -> None:
    class Opaque:
        def __init__(self, x: Any) -> None:
            self.x = x

    o = types.SimpleNamespace(kept=None)

    def of_an_object(x: Any) -> Any:
        o.kept = Opaque(x * 2)
        return x

    with pytest.raises(AssignmentError, match=r"float64\[3\] of .*kept in Opaque\.x.*return it"):
        ost.compile(of_an_object)(ost.ones(3))
    assert o.kept is None


def test_a_container_that_is_passed_twice_is_refused() -> None:
    state = {"m": ost.zeros(3)}

    @ost.compile
    def step(a: Any, b: Any) -> Any:
        a["m"] = a["m"] + 1
        return b["m"] * 1

    with pytest.raises(AssignmentError, match=r"a dict that it writes to.*pass a copy"):
        step(state, state)
    step(state, {"m": ost.ones(3)})


def test_a_log_is_left_alone() -> None:
    traces: list[Any] = []

    @ost.compile
    def step(x: Any) -> Any:
        traces.append("traced")
        return x * 2

    for _ in range(3):
        step(ost.ones(3))
    assert traces == ["traced"]


def test_a_file_that_is_written_is_said(tmp_path: Any) -> None:
    @ost.compile
    def step(x: Any) -> Any:
        with open(tmp_path / "log", "a") as f:
            f.write("called")
        return x

    with pytest.warns(StaleWarning, match=r"open cannot be watched: a file, written once"):
        step(ost.ones(3))


def test_numbers_ask_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters and rates are computed by the program: the plan's results alone come from workers."""
    o = types.SimpleNamespace(t=0, rate=1.0)

    @ost.compile
    def step(x: Any) -> Any:
        o.t += 1
        o.rate = o.rate / (1 + o.t)
        return x * o.rate

    step(ost.ones(3))
    engine = ost.sessions.current().engine
    monkeypatch.setattr(type(engine), "get", lambda *_: pytest.fail("a value was asked for"))
    step(ost.ones(3))
    assert (o.t, o.rate) == (2, 1 / 2 / 3)
    assert len(step.plan.traced.outputs) == 1


@pytest.mark.parametrize("kind", [dict, list])
def test_containers_that_hold_themselves_may_be_made(kind: type) -> None:
    """As graphs of a program's own are, with arrays of the trace in them."""

    @ost.compile
    def step(x: Any) -> Any:
        own: Any = {"twice": x * 2} if kind is dict else [x * 2]
        if kind is dict:
            own["own"] = own
            return own["twice"] + 1
        own.append(own)
        return own[0] + 1

    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(step(ost.ones(3))), [3, 3, 3])
