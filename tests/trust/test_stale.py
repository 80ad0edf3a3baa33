"""No stale result: whatever a compiled function reads of what is around it, a change of it counts.

Each case is a way to reach something and a way to change it; the compiled function is compared with the same
function run as it is, before and after."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import gc
import importlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import ostinato as ost
from ostinato import code_facts, tracing
from ostinato.errors import StaleResultError, StaleWarning, TracedValueError
from tests.sessions import use

from .conftest import Tally

X = np.array([0.5, 1.0, 2.0])


@pytest.fixture(autouse=True)
def _one_worker() -> Iterator[None]:
    with use():
        yield


def same(function: Callable[..., Any], compiled: Callable[..., Any], *more: Any) -> None:
    """Compiled, twice, as it is."""
    x = ost.asarray(X)
    wanted = np.asarray(function(x, *more))
    for _ in range(2):
        got = np.asarray(compiled(x, *more))
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype


def test_instructions_that_load_two_variables_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 has such."""
    both = types.SimpleNamespace(
        opname="STORE_FAST_LOAD_FAST", argval=("x", "y"), argrepr="x, y", positions=None
    )
    monkeypatch.setattr(code_facts.dis, "get_instructions", lambda code: [both])
    steps = [*code_facts.instructions(test_instructions_that_load_two_variables_are_two.__code__)]
    assert steps == [("STORE_FAST", "x", "x", 0), ("LOAD_FAST", "y", "y", 0)]


def test_a_table_that_nobody_writes_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, traces, run = {"scale": 2.0, "shift": 1.0}, list[None](), tracing._run
    monkeypatch.setattr(tracing, "_run", lambda *given: (traces.append(None), run(*given))[1])
    f = ost.compile(lambda x, name: x * table[name])
    f(ost.asarray(X), "scale")
    assert len(traces) == 1


# -- values, and ways to read them ---------------------------------------------------------
class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def double(x: Any) -> Any:
    return x * 2


def square(x: Any) -> Any:
    return x * x


def use_value(x: Any, v: Any) -> Any:
    """A result that is another for each value of VALUES."""
    if v is None:
        return x + 100
    if isinstance(v, ost.Array):
        return x + v
    if isinstance(v, (np.ndarray, np.generic)):
        return x * v
    if isinstance(v, np.dtype):
        return x.astype(v)
    if callable(v):
        return v(x)
    if isinstance(v, Colour):
        return x + v.value * 10
    if isinstance(v, slice):
        return x[v]
    if isinstance(v, range):
        return x + sum(v)
    if isinstance(v, (set, frozenset)):
        return x + len(v) * 1000 + sum(v)
    if isinstance(v, str):
        return x + len(v)
    if isinstance(v, bytes):
        return x + sum(v)
    if isinstance(v, dict):
        return x + sum(v.values())
    if isinstance(v, (list, tuple, deque)):
        for item in v:
            x = use_value(x, item)
        return x
    return x * v


def values() -> list[tuple[str, Any, Any]]:
    """Kinds of things, and two of each."""
    return [
        ("None to a number", None, 3.0),
        ("None to an array", None, ost.ones(3)),
        ("arrays", ost.ones(3), ost.zeros(3)),
        ("numbers", 2.0, 3.0),
        ("an int to a float", 2, 2.0),
        ("zeros", 0.0, -0.0),
        ("a bool to an int", True, 1),
        ("dtypes", ost.float32, ost.float16),
        ("NumPy scalars", np.float32(2), np.float32(3)),
        ("their dtypes", np.float32(2), np.float64(2)),
        ("NumPy arrays", np.ones(3), np.zeros(3)),
        ("functions", ost.nn.relu, ost.exp),
        ("users' functions", double, square),
        ("partials", functools.partial(ost.multiply, 2.0), functools.partial(ost.multiply, 3.0)),
        ("enums", Colour.RED, Colour.BLUE),
        ("slices", slice(0, 2), slice(1, 3)),
        ("ranges", range(3), range(4)),
        ("sets", {1, 2}, {1, 3}),
        ("frozen sets", frozenset((1, 2)), frozenset((1, 3))),
        ("texts", "a", "bc"),
        ("bytes", b"a", b"b"),
        ("tuples", (1.0, 2.0), (1.0, 3.0)),
        ("lists of many", [1.0] * 300, [1.0] * 299 + [2.0]),
        ("dicts of many", dict.fromkeys(range(300), 1), {**dict.fromkeys(range(299), 1), 299: 2}),
        ("gradients", ost.grad(lambda x: (x * 2.0).sum()), ost.grad(lambda x: (x * 3.0).sum())),
        ("compiled functions", ost.compile(double), ost.compile(square)),
    ]


VALUES = values()
GLOBAL: Any = None


class Holder:
    held: Any = None

    def __init__(self, v: Any) -> None:
        self.v = v

    def forward(self, x: Any) -> Any:
        return use_value(x, self.v)

    def __call__(self, x: Any) -> Any:
        return self.forward(x)


class Derived(Holder):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


class Hidden:
    """Attributes that no code names."""

    def __init__(self, v: Any) -> None:
        self.__dict__["inner"] = {"v": v}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["inner"][name]

    def __getitem__(self, key: str) -> Any:
        return getattr(self, "".join(["v"]))


class Slotted:
    __slots__ = ("v",)

    def __init__(self, v: Any) -> None:
        self.v = v


@dataclasses.dataclass
class Config:
    rate: float
    v: ClassVar[Any] = None

    def run(self, x: Any) -> Any:
        return use_value(x, self.v) * self.rate


def foreign(function: Any) -> Any:
    """A decorator of another library."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Foreign:
    """One that is a class, with attributes of its own."""

    def __init__(self, function: Any) -> None:
        self.function = self.hits = self.last = function
        functools.update_wrapper(self, function)
        self.called = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


Way = tuple[
    Callable[[Any], Any], Callable[[Any], None]
]  # a function of x, and how to put another value


def _global(v: Any) -> Way:
    def put(value: Any) -> None:
        globals()["GLOBAL"] = value

    put(v)
    return (lambda x: use_value(x, GLOBAL)), put


def _cell(v: Any) -> Way:
    def put(value: Any) -> None:
        nonlocal v
        v = value

    return (lambda x: use_value(x, v)), put


def _module(v: Any) -> Way:
    module: Any = types.ModuleType("their_module")
    module.v = v
    return (lambda x: use_value(x, module.v)), lambda value: setattr(module, "v", value)


def _builtins(v: Any) -> Way:
    """A global that comes to stand before something of builtins."""
    space: dict[str, Any] = {"use_value": use_value, "found": v, "__builtins__": __builtins__}
    exec(
        "def f(x):\n try:\n  return use_value(x, late)\n except NameError:\n  return use_value(x, found)",
        space,
    )
    return space["f"], lambda value: space.update(late=value)


def _attribute(v: Any) -> Way:
    holder = Holder(v)
    return (lambda x: use_value(x, holder.v)), lambda value: setattr(holder, "v", value)


def _new_dict(v: Any) -> Way:
    holder = Holder(v)
    return (lambda x: use_value(x, holder.v)), lambda value: setattr(
        holder, "__dict__", {"v": value}
    )


def _class_attribute(v: Any) -> Way:
    kind = type("Kind", (Holder,), {"held": v})
    holder = kind(0)
    return (lambda x: use_value(x, holder.held)), lambda value: setattr(kind, "held", value)


def _shadowed(v: Any) -> Way:
    """A class's attribute that an object comes to have itself."""
    holder = type("Kind", (Holder,), {"held": v})(0)
    return (lambda x: use_value(x, holder.held)), lambda value: setattr(holder, "held", value)


def _of_base(v: Any) -> Way:
    base: Any = type("Base", (Holder,), {"held": v})
    holder = type("Kind", (base,), {})(0)
    return (lambda x: use_value(x, holder.held)), lambda value: setattr(base, "held", value)


def _method(v: Any) -> Way:
    holder = Holder(v)
    return holder.forward, lambda value: setattr(holder, "v", value)


def _object(v: Any) -> Way:
    holder = Holder(v)
    return holder, lambda value: setattr(holder, "v", value)


def _super(v: Any) -> Way:
    holder = Derived(v)
    return (lambda x: holder(x)), lambda value: setattr(holder, "v", value)


def _method_replaced(v: Any) -> Way:
    kind = type("Kind", (Holder,), {"forward": lambda self, x: use_value(x, v)})
    holder = kind(0)

    def put(value: Any) -> None:
        kind.forward = lambda self, x: use_value(x, value)  # type: ignore[attr-defined]

    return (lambda x: holder(x)), put


def _getattr(v: Any) -> Way:
    hidden = Hidden(v)
    return (lambda x: use_value(x, hidden.v)), lambda value: hidden.__dict__["inner"].update(
        v=value
    )


def _getitem(v: Any) -> Way:
    hidden = Hidden(v)
    return (lambda x: use_value(x, hidden["v"])), lambda value: hidden.__dict__["inner"].update(
        v=value
    )


def _by_text(v: Any) -> Way:
    holder = Holder(v)
    return (
        lambda x: use_value(x, getattr(holder, "v", None)),
        lambda value: setattr(holder, "v", value),
    )


def _by_made_text(v: Any) -> Way:
    holder, number = Holder(None), 7
    setattr(holder, "w7", v)  # noqa: B010
    return (lambda x: use_value(x, getattr(holder, f"w{number}"))), lambda value: setattr(
        holder, "w7", value
    )


def _of_module_by_made_text(v: Any) -> Way:
    module: Any = types.ModuleType("their_module")
    module.w7, number = v, 7
    return (
        lambda x: use_value(x, getattr(module, f"w{number}")),
        lambda value: setattr(module, "w7", value),
    )


def _vars(v: Any) -> Way:
    holder = Holder(v)
    return (
        lambda x: use_value(x, next(iter(vars(holder).values()))),
        lambda value: setattr(holder, "v", value),
    )


def _property(v: Any) -> Way:
    kind = type("Kind", (Holder,), {"p": property(lambda self: self.v)})
    holder: Any = kind(v)
    return (lambda x: use_value(x, holder.p)), lambda value: setattr(holder, "v", value)


def _slots(v: Any) -> Way:
    holder = Slotted(v)
    return (lambda x: use_value(x, holder.v)), lambda value: setattr(holder, "v", value)


def _class_var(v: Any) -> Way:
    Config.v = v
    config = Config(2.0)
    return config.run, lambda value: setattr(Config, "v", value)


def _partial(v: Any) -> Way:
    holder = Holder(v)
    return functools.partial(lambda h, x: use_value(x, h.v), holder), lambda value: setattr(
        holder, "v", value
    )


def _default(v: Any) -> Way:
    box = [v]

    def f(x: Any, b: Any = box) -> Any:
        return use_value(x, b[0])

    return (lambda x: f(x)), lambda value: box.__setitem__(0, value)


def _defaults_replaced(v: Any) -> Way:
    def f(x: Any, b: Any = None) -> Any:
        return use_value(x, b)

    f.__defaults__ = (v,)
    return (lambda x: f(x)), lambda value: setattr(f, "__defaults__", (value,))


def _code_replaced(v: Any) -> Way:
    """What reloading in place does."""

    def f(x: Any) -> Any:
        return use_value(x, GLOBAL)

    def g(x: Any) -> Any:
        return use_value(x, Holder.held)

    globals()["GLOBAL"] = v
    Holder.held = None

    def put(value: Any) -> None:
        Holder.held = value
        f.__code__ = g.__code__

    return (lambda x: f(x)), put


def _list(v: Any) -> Way:
    box = [1.0, v]
    return (lambda x: use_value(x, box[1])), lambda value: box.__setitem__(1, value)


def _nested(v: Any) -> Way:
    box: Any = {"a": [1.0, ({"v": v},)]}
    return (lambda x: use_value(x, box["a"][1][0]["v"])), lambda value: box["a"][1][0].update(
        v=value
    )


def _large(v: Any) -> Way:
    box = [0.0] * 1000
    box[777] = v
    return (lambda x: use_value(x, box[777])), lambda value: box.__setitem__(777, value)


def _large_dict(v: Any) -> Way:
    box: dict[Any, Any] = dict.fromkeys(range(1000), 0.0)
    box[777] = v
    return (lambda x: use_value(x, box[777])), lambda value: box.__setitem__(777, value)


def _of_kind(kind: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Way]:
    def way(v: Any) -> Way:
        box = kind({"v": v})
        return (lambda x: use_value(x, box["v"])), lambda value: box.__setitem__("v", value)

    way.__name__ = f"_{getattr(kind, '__name__', 'kind')}"
    return way


def _deque(v: Any) -> Way:
    box = deque([v])
    return (lambda x: use_value(x, box[0])), lambda value: box.__setitem__(0, value)


def _proxy(v: Any) -> Way:
    inner = {"v": v}
    box = types.MappingProxyType(inner)
    return (lambda x: use_value(x, box["v"])), lambda value: inner.__setitem__("v", value)


def _namespace(v: Any) -> Way:
    box = types.SimpleNamespace(v=v)
    return (lambda x: use_value(x, box.v)), lambda value: setattr(box, "v", value)


def _weak(v: Any) -> Way:
    holder = Holder(v)
    ref = weakref.ref(holder)
    return (lambda x: use_value(x, ref().v)), lambda value: setattr(holder, "v", value)  # type: ignore[union-attr]


def _generator(v: Any) -> Way:
    """Objects that only a generator gives."""
    holders = UserDict(a=Holder(v))

    def each() -> Any:
        yield from holders.values()

    def f(x: Any) -> Any:
        for h in each():
            x = use_value(x, h.v)
        return x

    return f, lambda value: setattr(holders["a"], "v", value)


def _decorated(v: Any) -> Way:
    holder = Holder(v)

    @foreign
    def inner(x: Any) -> Any:
        return use_value(x, holder.v)

    return (lambda x: inner(x)), lambda value: setattr(holder, "v", value)


def _decorated_by_class(v: Any) -> Way:
    holder = Holder(v)

    @Foreign
    def inner(x: Any) -> Any:
        return use_value(x, holder.v)

    return (lambda x: inner(x)), lambda value: setattr(holder, "v", value)


def _checkpointed(v: Any) -> Way:
    def inner(x: Any) -> Any:
        return use_value(x, v)

    def put(value: Any) -> None:
        nonlocal v
        v = value

    block = ost.checkpoint(inner)
    return (lambda x: block(x)), put


def _inner_compiled(v: Any) -> Way:
    holder = Holder(v)
    inner = ost.compile(lambda x: use_value(x, holder.v))
    return (lambda x: inner(x)), lambda value: setattr(holder, "v", value)


def _inner_compiled_of_constants(v: Any) -> Way:
    """A compiled function that runs during the trace, as nothing of it is traced."""
    holder, one = Holder(v), ost.ones(3)
    inner = ost.compile(lambda y: use_value(y, holder.v))
    inner(one)
    return (lambda x: x * 1.0 + inner(one)), lambda value: setattr(holder, "v", value)


def _in_a_loop(v: Any) -> Way:
    holder = Holder(v)
    return (
        lambda x: ost.repeat(
            1, lambda y: (use_value(y, holder.v) * 1.0).astype(y.dtype).sum() + 0 * y, x
        )
    ), (lambda value: setattr(holder, "v", value))


def _reduce(v: Any) -> Way:
    """A function that only the library calls."""
    holder = Holder(v)
    return (lambda x: functools.reduce(lambda y, _: use_value(y, holder.v), (0,), x)), (
        lambda value: setattr(holder, "v", value)
    )


def _class_replaced(v: Any) -> Way:
    kind = type("Kind", (Holder,), {"forward": lambda self, x: use_value(x, v)})
    holder = kind(0)

    def put(value: Any) -> None:
        holder.__class__ = type(
            "Other", (Holder,), {"forward": lambda self, x: use_value(x, value)}
        )

    return (lambda x: holder(x)), put


def _remembered(v: Any) -> Way:
    """What a function under `lru_cache` read, which does not run again."""
    holder = Holder(v)

    def inner() -> Any:
        return holder.v

    @functools.lru_cache
    def found() -> Any:
        return inner()

    def put(value: Any) -> None:
        holder.v = value
        found.cache_clear()

    found()
    return (lambda x: use_value(x, found())), put


def _by_globals(v: Any) -> Way:
    space: dict[str, Any] = {"use_value": use_value, "late": v}
    exec("def f(x):\n return use_value(x, globals()['late'])", space)
    return space["f"], lambda value: space.update(late=value)


def _by_made_globals(v: Any) -> Way:
    space: dict[str, Any] = {"use_value": use_value, "v7": v, "number": 7}
    exec("def f(x):\n return use_value(x, globals()[f'v{number}'])", space)
    return space["f"], lambda value: space.update(v7=value)


def _loaded_module(v: Any) -> Way:
    module: Any = types.ModuleType("their_module_7")
    module.v = v
    sys.modules["their_module_7"] = module
    return (
        lambda x: use_value(x, sys.modules["their_module_7"].v),
        lambda value: setattr(module, "v", value),
    )


def _imported_module(v: Any) -> Way:
    module: Any = types.ModuleType("their_module_8")
    module.v = v
    sys.modules["their_module_8"] = module
    return (
        lambda x: use_value(x, importlib.import_module("their_module_8").v),
        lambda value: setattr(module, "v", value),
    )


def _alias(v: Any) -> Way:
    """`target = online`, later another."""
    names = types.SimpleNamespace(online=v, target=v)
    return (lambda x: use_value(use_value(x, names.online), names.target)), (
        lambda value: setattr(names, "target", value)
    )


WAYS: list[Callable[[Any], Way]] = [
    *(f for n, f in sorted(globals().items()) if n.startswith("_") and f.__class__ is types.FunctionType
      and list(getattr(f, "__annotations__", {})) == ["v", "return"]),
    *map(_of_kind, (OrderedDict, UserDict, ChainMap, lambda d: defaultdict(int, d))),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__.strip("_"))
@pytest.mark.filterwarnings("ignore::ostinato.errors.StaleWarning")
def test_every_way_to_reach_every_kind_of_thing(way: Any, thorough: bool, tally: Tally) -> None:
    all_kinds = thorough or way in (_global, _cell, _attribute, _list)
    for kind, before, after in VALUES if all_kinds else VALUES[WAYS.index(way) % 3 :: 3]:
        if way is _in_a_loop and kind in ("slices", "dtypes"):
            continue  # whose results have another shape or dtype than what is carried
        if way is _inner_compiled_of_constants and kind == "slices":
            continue
        if way in (_class_attribute, _class_var, _of_base, _shadowed) and callable(before):
            continue  # which would become methods
        function, put = way(before)
        compiled = ost.compile(function)
        same(function, compiled)
        put(after)
        same(function, compiled)
        if way is not _builtins and way is not _code_replaced and way is not _shadowed:
            put(before)
            same(function, compiled)
        misses = len(compiled.misses)
        same(function, compiled)
        assert len(compiled.misses) == misses, (
            f"{kind}: nothing changed, and yet it was traced again"
        )
        tally("changes", 2)


def test_numbers_that_are_written_where_they_lie() -> None:
    table = np.ones(3)
    f = ost.compile(lambda x: x * table)
    same(lambda x: x * table, f)
    table[1] = 5
    same(lambda x: x * table, f)


def test_arrays_that_were_given_away_are_no_longer_used() -> None:
    w = ost.ones(3) + 0.0
    f = ost.compile(lambda x: x * w)
    f(ost.asarray(X))
    ost.compile(lambda w: w * 2, donate="w")(w)
    with pytest.raises(ost.errors.DonatedError):
        f(ost.asarray(X))


def test_a_module_that_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "helpers_of_theirs.py"
    file.write_text("RATE = 2.0\ndef scale(x):\n    return x * RATE\n")
    module = importlib.import_module("helpers_of_theirs")
    f = ost.compile(lambda x: module.scale(x))
    same(module.scale, f)
    file.write_text("RATE = 33.0\ndef scale(x):\n    return x * RATE + 1\n")
    os.utime(file, (1, 1))
    importlib.reload(module)
    same(module.scale, f)
    module.scale = lambda x: x - 1
    same(lambda x: x - 1, f)


def test_defaults_of_the_compiled_function() -> None:
    box = [2.0]

    def f(x: Any, b: Any = box) -> Any:
        return x * b[0]

    compiled = ost.compile(f)
    same(f, compiled)
    box[0] = 3.0
    same(f, compiled)
    f.__defaults__ = ([5.0],)
    same(f, compiled)


def test_what_another_thread_changes_during_the_trace() -> None:
    """The trace reads 2.0, and 3.0 stands there when it ends."""
    holder = Holder(2.0)
    once = iter([True])

    def elsewhere() -> None:
        holder.__dict__.update({"v": 3.0})

    def f(x: Any) -> Any:
        y = x * holder.v
        if next(once, False):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        return y

    compiled = ost.compile(f)
    x = ost.asarray(X)
    with pytest.warns(StaleWarning, match="an iterator"):
        compiled(x)
    np.testing.assert_array_equal(np.asarray(compiled(x)), X * 3)


def test_methods_of_many_instances() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        @ost.compile
        def step(self, x: Any) -> Any:
            return x * self.w

    models = [Model(float(k)) for k in range(5)]
    x = ost.asarray(X)
    for turn in range(3):
        for k, m in enumerate(models):
            m.w = k + 10.0 * turn
            for _ in range(2):
                np.testing.assert_array_equal(np.asarray(m.step(x)), X * m.w)


def test_counters_and_logs_are_not_read() -> None:
    log: list[Any] = []
    counts = {"calls": 0}
    holder = Holder(0)

    def f(x: Any, n: int) -> Any:
        log.append(n)
        counts["calls"] += 1
        holder.v += 1
        return x.reshape(n, -1)

    compiled = ost.compile(f)
    x = ost.ones(12)
    for n in (3, 4, 3, 4, 6):
        compiled(x, n)
    assert len(compiled.misses) == 3
    log.clear()
    compiled(x, 3)
    assert len(compiled.misses) == 3


def test_what_looks_like_a_counter_a_log_or_a_plain_name_and_is_none() -> None:
    class Adder:
        def __init__(self, k: float) -> None:
            self.k = k

        def add(self, x: Any) -> Any:
            return x + self.k

    holder, name = Holder(2.0), "v"
    block = Adder(1.0)

    def of_same_name(x: Any) -> Any:
        v = holder.v * 2
        return x * v

    def rebound(x: Any) -> Any:
        return block.add(x)

    def with_default(x: Any) -> Any:
        made = name
        return x * getattr(holder, made, "none")

    def of_call(x: Any, letters: str = "v") -> Any:
        return x * getattr((lambda _: holder)("q"), "".join(letters))

    for f in (of_same_name, rebound, with_default, of_call):
        compiled = ost.compile(f)
        for k in (2.0, 3.0, 4.0):
            holder.v, block = k, Adder(k)
            same(f, compiled)


def test_an_equal_value_is_no_change() -> None:
    holder = Holder((1.5, "a", (2, np.float32(3))))
    f = ost.compile(lambda x: x * holder.v[0] + len(holder.v[1]) * holder.v[2][1])
    f(ost.asarray(X))
    for _ in range(3):
        holder.v = (float("1.5"), "".join("a"), (int("2"), np.float32(3)))
        f(ost.asarray(X))
    assert (len(f.misses), f.hits) == (1, 3)


# -- what is said --------------------------------------------------------------------------
def test_why_it_was_traced_again() -> None:
    holder = Holder(2.0)
    f = ost.compile(lambda x: x * holder.v)
    f(ost.asarray(X))
    holder.v = 3.0
    f(ost.asarray(X))
    assert "holder.v: 2.0 -> 3.0" in ost.why_miss(f)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: np.ones(10_000), "a NumPy array of 80,000 bytes; what is written to it later"),
        (lambda: iter([1.0, 2.0]), "an iterator"),
        (lambda: np.random.rand, "random numbers, drawn once"),
        (lambda: np.random.default_rng(0).random, "random numbers, drawn once"),
        (lambda: bytearray(b"a"), "a bytearray, which may be written to"),
    ],
)
def test_what_cannot_be_watched_is_said_once(make: Any, said: str) -> None:
    thing = make()

    def f(x: Any) -> Any:
        found = thing(1) if callable(thing) else thing
        return x * float(next(found) if hasattr(found, "__next__") else found[0])

    compiled = ost.compile(f)
    with pytest.warns(StaleWarning, match=said) as caught:
        compiled(ost.asarray(X))
    compiled(ost.ones(5))  # warnings are errors
    assert len(caught) == 1
    assert "test_stale.py" in str(caught[0].message)
    assert caught[0].filename == __file__


class Pair(NamedTuple):
    a: float

    def scaled(self, x: Any) -> Any:
        return x * self.a


class Table(dict[str, float]):
    factor: Any = 3.0

    def scaled(self, x: Any) -> Any:
        return x * self["a"] * self.factor


class Mixed(Config):
    factor: Any = 1.0

    def scaled(self, x: Any) -> Any:
        return self.run(x) * self.factor


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        (Pair(2.0), "scaled", lambda self, x: x * 7 * self.a),
        (Table(a=2.0), "factor", 5.0),
        (Table(a=2.0), "scaled", lambda self, x: x - self["a"]),
        (Mixed(2.0), "factor", 4.0),
        (Mixed(2.0), "run", lambda self, x: x + self.rate),
        (Mixed(2.0), "v", 3.0),
    ],
)
def test_classes_of_arguments(
    argument: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose objects are taken apart when a function is called."""
    monkeypatch.setattr(Config, "v", 2.0)
    compiled = ost.compile(lambda x, a: a.scaled(x))
    same(lambda x, a: a.scaled(x), compiled, argument)
    monkeypatch.setattr(type(argument), name, value)
    same(lambda x, a: a.scaled(x), compiled, argument)
    assert len(compiled.misses) == 2


RNG = np.random.default_rng(7)
OWNER = types.SimpleNamespace(rng=random.Random(7))


def by_attribute(x: Any) -> Any:
    return x * RNG.normal()


def by_attribute_of_a_module(x: Any) -> Any:
    return x * np.random.rand()


def by_attribute_of_an_object(x: Any) -> Any:
    return x * OWNER.rng.gauss(0.0, 1.0)


def by_another_name(x: Any) -> Any:
    draw = OWNER.rng
    return x * draw.random()


def by_the_clock(x: Any) -> Any:
    return x * time.time()


def by_the_calendar(x: Any) -> Any:
    return x * datetime.datetime.now().year


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (by_attribute, r"RNG\.normal cannot be watched: random numbers"),
        (by_attribute_of_a_module, r"np\.random\.rand cannot be watched: random numbers"),
        (by_attribute_of_an_object, r"OWNER\.rng\.gauss cannot be watched: random numbers"),
        (by_another_name, r"OWNER\.rng cannot be watched: random numbers"),
        (by_the_clock, r"time\.time cannot be watched: a clock"),
        (by_the_calendar, r"datetime\.datetime\.now cannot be watched: a clock"),
    ],
)
def test_sources_are_found_by_attribute(function: Any, said: str) -> None:
    with pytest.warns(StaleWarning, match=said) as caught:
        ost.compile(function)(ost.asarray(X))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert caught[0].lineno in range(
        function.__code__.co_firstlineno + 1, function.__code__.co_firstlineno + 3
    )


def test_numbers_of_a_seed_that_the_function_says_are_the_same_each_time() -> None:
    """They are nobody's else; and names of `ost.random` are no sources."""

    def f(x: Any) -> Any:
        drawn = np.random.default_rng(0).normal(size=3)
        return x * drawn + ost.random.normal((3,), seed=1) + random.Random(3).random()

    same(f, ost.compile(f))


def test_read_only_numbers_are_believed() -> None:
    table = np.ones(10_000)
    table.flags.writeable = False
    f = ost.compile(lambda x: x * table[:3].sum())
    f(ost.asarray(X))


def test_what_changes_from_call_to_call_is_said_once() -> None:
    holder = Holder(0)
    f = ost.compile(lambda x: x * holder.v)

    def call(k: int) -> None:
        holder.v = k
        f(ost.asarray(X))

    for k in range(8):
        call(k)
    with pytest.warns(StaleWarning, match=r"since holder\.v changes from call to call; pass it"):
        call(8)
    for k in range(9, 40):
        call(k)


@pytest.mark.parametrize("bare", [True, False])
def test_the_tracers_own_signal_is_not_swallowed(bare: bool) -> None:
    def of_number(x: Any, n: int) -> Any:
        try:
            if n > 2:
                return x * 2
        except:  # noqa: E722
            return x * 0
        return x

    compiled = ost.compile(of_number)
    for n in (1, 3):
        np.testing.assert_array_equal(
            np.asarray(compiled(ost.asarray(X), n)), X * (2 if n > 2 else 1)
        )

    swallowed = BaseException if bare else Exception

    def of_array(x: Any) -> Any:
        try:
            return x * 2 if float(x.sum()) > 0 else x
        except swallowed:
            return x * 0

    with pytest.raises(TracedValueError, match="float"):
        ost.compile(of_array)(ost.asarray(X))


# -- what runs meanwhile -------------------------------------------------------------------
noise = 0.5


def reads_noise(*_: Any) -> float:
    """What nobody who traces has called; a clock is read, too, which would be warned of."""
    return noise + time.time()


class Finished:
    """Garbage of somebody else's."""

    def __del__(self) -> None:
        reads_noise()


def closed() -> Iterator[float]:
    try:
        yield 1.0
    finally:
        reads_noise()


def garbage(kind: str) -> Any:
    """Things that only the collector finds; and what has to stay until then."""
    cycle: list[Any] = []
    cycle.append(cycle)
    if kind == "a finalizer":
        cycle.append(Finished())
    elif kind == "a generator":
        cycle.append(closed())
        next(cycle[1])
    elif kind == "a callback":
        cycle.append(Holder(1))
        return weakref.ref(cycle[1], reads_noise)
    return None


@pytest.fixture
def no_collection() -> Iterator[None]:
    """But for those that a test asks for."""
    gc.disable()
    yield
    gc.enable()


def handler(*_: Any) -> None:
    reads_noise()


@pytest.mark.parametrize(
    "kind",
    ["a finalizer", "a generator", "a callback", "a handler", "a signal", "the last reference"],
)
@pytest.mark.usefixtures("no_collection")
def test_what_runs_meanwhile_is_no_part_of_the_trace(kind: str, tally: Tally) -> None:
    """The collector, finalizers and handlers run at any moment, in whatever thread."""
    holder = Holder(2.0)

    def f(x: Any) -> Any:
        if kind == "a signal":
            signal.raise_signal(signal.SIGUSR1)
        elif kind == "the last reference":
            Finished()
        else:
            gc.collect()
        return x * holder.v

    before = signal.signal(signal.SIGUSR1, handler)
    gc.callbacks.extend([handler] if kind == "a handler" else [])
    compiled = ost.compile(f)
    try:
        for noise in (1.0, 2.0):
            stays = garbage(kind)
            globals()["noise"] = noise
            np.testing.assert_array_equal(np.asarray(compiled(ost.asarray(X))), X * 2)
        assert stays is None or stays() is not None, "only a trace collects"
        assert len(compiled.misses) == 1
        holder.v = 3.0
        np.testing.assert_array_equal(np.asarray(compiled(ost.asarray(X))), X * 3)
    finally:
        signal.signal(signal.SIGUSR1, before)
        gc.callbacks[:] = [c for c in gc.callbacks if c is not handler]
    tally("what ran meanwhile", 1)


class Computes:
    """A finalizer that traces."""

    def __init__(self, f: Any, found: list[Any]) -> None:
        self.f, self.found, self.me = f, found, self

    def __del__(self) -> None:
        self.found.append(np.asarray(self.f(ost.asarray(X))))


@pytest.mark.usefixtures("no_collection")
def test_what_a_finalizer_traces_is_watched(tally: Tally) -> None:
    holder, found = Holder(2.0), list[Any]()
    inner = ost.compile(lambda x: x * holder.v)

    def outer(x: Any) -> Any:
        gc.collect()
        return x + 1.0

    for value in (2.0, 3.0):
        holder.v = value
        Computes(inner, found)
        compiled = ost.compile(outer)
        np.testing.assert_array_equal(np.asarray(compiled(ost.asarray(X))), X + 1.0)
        np.testing.assert_array_equal(found.pop(), X * value)
        assert not found
    tally("what ran meanwhile", 2)


def test_another_trace_is_compared(tmp_path: Path) -> None:
    """What cannot be watched is found by OSTINATO_CHECK_STALE."""
    script = tmp_path / "script.py"
    script.write_text(
        "import ostinato as ost, ctypes\n"
        "rate = ctypes.c_double(2.0)\n"
        "f = ost.compile(lambda x: x * rate.value)\n"
        "x = ost.ones(3)\n"
        "f(x); f(x); f(x)\n"
        "rate.value = 3.0\n"
        "try:\n"
        "    f(x); f(x)\n"
        "except ost.errors.StaleResultError as e:\n"
        "    print('found', e)\n"
    )
    env = {**os.environ, "OSTINATO_CHECK_STALE": "2"}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=True
    )
    assert "found a hit of <lambda> (" in done.stdout
    assert "3.0" in done.stdout
    assert "in place of" in done.stdout
    assert issubclass(StaleResultError, RuntimeError)


# -- nesting -------------------------------------------------------------------------------
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "compile": ost.compile,
    "grad": ost.grad,
    "value_and_grad": ost.value_and_grad,
    "checkpoint": ost.checkpoint,
    "foreign": foreign,
    "Foreign": Foreign,
    "partial": functools.partial,
    "cached": lambda f: functools.wraps(f)(functools.partial(f)),
}
_OF_PLAIN = {"checkpoint": lambda f: f, "compile": lambda f: f, "partial": lambda f: f, "cached": lambda f: f,
             "foreign": lambda f: f, "Foreign": lambda f: f}  # fmt: skip


def _chains() -> list[tuple[str, ...]]:
    """All pairs and triples, with one gradient at the most before what gives an array."""
    found = []
    for n in (1, 2, 3):
        for names in itertools.product(TRANSFORMS, repeat=n):
            gradients = [k for k, name in enumerate(names) if "grad" in name]
            if len(gradients) <= 1:
                found.append(names)
    return found


def test_nesting_in_any_order(tally: Tally) -> None:
    """`names[0]` is applied first."""
    w = 3.0

    def loss(x: Any) -> Any:
        return (x * x * w).sum()

    x = ost.asarray(X)
    for names in _chains():
        f: Any = loss
        for name in names:
            f = TRANSFORMS[name](f)
        for factor in (3.0, 5.0, 3.0):
            w = factor
            for _ in range(2):
                got = f(x)
                value, grad = float((X * X).sum() * factor), 2 * X * factor
                if "value_and_grad" in names:
                    np.testing.assert_allclose(float(got[0]), value)
                    got = got[1]
                wanted = grad if any("grad" in n for n in names) else value
                np.testing.assert_allclose(
                    np.asarray(got), wanted, err_msg=" of ".join(reversed(names))
                )
        tally("nestings", 1)


def test_wrapped_functions_keep_their_own_names() -> None:
    @ost.compile
    def f(x: Any) -> Any:
        """About f."""
        return x * 2

    assert (f.__name__, f.__doc__, f.__module__) == ("f", "About f.", __name__)
    outer = foreign(f)
    assert outer.__name__ == "f"
    assert "entries" not in vars(outer)
    again = ost.compile(ost.grad(ost.compile(lambda x: (x**2).sum())))
    np.testing.assert_array_equal(np.asarray(again(ost.asarray(X))), 2 * X)
