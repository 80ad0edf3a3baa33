"""Numbers that Python calls equal (0.0 and -0.0, 1 and True, every NaN) are different in plans, signatures and on disk.

Programs with one number run behind the same programs with its equals, in any order, and give NumPy's bits each
time. Texts, files and keys tell apart what memory tells apart. Caches take no numbers as keys."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import math
import struct
import typing
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import tree
from ostinato.ops.core.encode import decode_graph, digest, encode_graph
from ostinato.ops.core.exact import exact
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.show import parse, show
from ostinato.ops.core.spec import Spec, complex128, float64
from ostinato.planner.plan import Key, Target

import ostinato as ost
from tests.helpers import counts_traces
from tests.thorough import some


def nan(bits: int) -> float:
    return struct.unpack(">d", bits.to_bytes(8, "big"))[0]


NANS = [math.nan, nan(0xFFF8000000000000), nan(0x7FF8000000000123), nan(0xFFF8000000ABCDEF)]
FAMILIES: dict[str, list[Any]] = {
    "zeros": [0, 0.0, -0.0, False, 0j, complex(0, -0.0), complex(-0.0, 0.0), np.float32(-0.0)],
    "ones": [1, True, 1.0, 1 + 0j, complex(1, -0.0), np.float64(1.0), np.int64(1), np.bool_(True)],
    "nans": [*NANS, complex(math.nan, 0.0), complex(math.nan, -0.0), np.float32(math.nan)],
    "tenths": [0.1, np.float32(0.1), float(np.float32(0.1)), np.float16(0.1), np.float64(0.1)],
    "large": [2**53, float(2**53), 2**53 + 1, np.int64(2**53), np.uint64(2**53)],
}
X = np.array([1.5, -0.0, 0.0, -2.0, np.inf])
M = np.array([True, False, True, False, True])


# What a number may come to in a program; its bits are kept where nothing is computed with them.
MOVED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "full": lambda xp, x, v: xp.full(3, v),
    "asarray": lambda xp, x, v: xp.asarray(v),
    "where": lambda xp, x, v: xp.where(xp.asarray(M), v, x),
    "state": lambda xp, x, v: ost.repeat(2, lambda s: s, v) if xp is ost else np.asarray(v),
}
COMPUTED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "multiply": lambda xp, x, v: x * v,
    "add": lambda xp, x, v: v + x,
    "subtract": lambda xp, x, v: v - x,
    "divide": lambda xp, x, v: x / v,
    "twice": lambda xp, x, v: (x * v, x * -v),
    "roots": lambda xp, x, v: xp.sqrt(xp.asarray(v) * xp.asarray(-1.0)),
    "comparison": lambda xp, x, v: x == v,
}
REAL: dict[str, Callable[[Any, Any, Any], Any]] = {  # of numbers that are not complex
    "full_like": lambda xp, x, v: xp.full_like(x, v),
    "copysign": lambda xp, x, v: xp.copysign(x, v),
    "signbit": lambda xp, x, v: xp.signbit(xp.asarray(v)),
    "clip": lambda xp, x, v: xp.clip(x + 0.5, v, 3.0),
    "linspace": lambda xp, x, v: xp.linspace(v, 1.0, 3),
}
PROGRAMS = {**MOVED, **COMPUTED, **REAL}


def closed(f: Any, v: Any) -> Any:
    return ost.compile(lambda x: f(ost, x, v))


def argument(f: Any, v: Any, kept: dict[Any, Any]) -> Any:
    made = kept.setdefault(("argument", f), ost.compile(lambda x, v: f(ost, x, v)))
    return lambda x: made(x, v)


def static(f: Any, v: Any, kept: dict[Any, Any]) -> Any:
    made = kept.setdefault(("static", f), ost.compile(lambda x, v: f(ost, x, v), static="v"))
    return lambda x: made(x, v)


def inside(f: Any, v: Any, kept: dict[Any, Any]) -> Any:
    """In a container, beside others."""
    made = kept.setdefault(("inside", f), ost.compile(lambda x, d: f(ost, x, d["v"][1])))
    return lambda x: made(x, {"v": [0, v]})


def default(f: Any, v: Any) -> Any:
    return ost.compile(lambda x, v=v: f(ost, x, v))


def looped(f: Any, v: Any) -> Any:
    def turn(state: Any, _: Any) -> Any:
        return state, f(ost, state, v)

    def run(x: Any) -> Any:
        made = ost.scan(turn, x, length=2)[1]
        return tuple(m[1] for m in made) if isinstance(made, tuple) else made[1]

    return run


WAYS: dict[str, Callable[[Any, Any, dict[Any, Any]], Any]] = {
    "eager": lambda f, v, kept: lambda x: f(ost, x, v),
    "closed": lambda f, v, kept: closed(f, v),
    "argument": argument,
    "static": static,
    "inside": inside,
    "default": lambda f, v, kept: default(f, v),
    "looped": lambda f, v, kept: looped(f, v),
}


def same_bits(got: Any, wanted: Any, moved: bool) -> bool:
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return False
    if not moved and wanted.dtype.kind in "fc":  # the sign of a NaN that was computed is free
        parts = [np.ascontiguousarray(a).view(a.real.dtype) for a in (got, wanted)]
        nans = [np.isnan(p) for p in parts]
        return (
            np.array_equal(*nans) and parts[0][~nans[0]].tobytes() == parts[1][~nans[1]].tobytes()
        )
    return got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_number_behind_its_equals(family, way, tally):
    numbers, count = FAMILIES[family], 0
    wrong = []
    for order in (numbers, numbers[::-1]):
        session = ost.connect(1)  # whose plans are new
        try:
            x = ost.asarray(X)
            kept: dict[Any, Any] = {}
            programs = some([*PROGRAMS.items()], 2, [*FAMILIES].index(family) + [*WAYS].index(way))
            for (name, f), v in itertools.product(programs, order):
                if way in ("argument", "inside", "looped") and isinstance(v, np.generic):
                    continue  # these are arrays there
                if name in REAL and (isinstance(v, np.generic) or type(v) is complex):
                    continue
                try:
                    with np.errstate(all="ignore"):
                        wanted = f(np, X, v)
                except TypeError:  # of NumPy: it has no meaning
                    continue
                try:
                    with np.errstate(all="ignore"):
                        got = WAYS[way](f, v, kept)(x)
                except ost.errors.OstinatoError as error:
                    wrong.append(f"{name}({v!r}): {error}")
                    continue
                pairs = (
                    zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
                )
                for a, b in pairs:
                    count += 1
                    if not same_bits(a, b, name in MOVED):
                        wrong.append(f"{name}({v!r}): got {np.asarray(a)!r}, needed {b!r}")
        finally:
            session.close()
    tally("programs", count)
    assert not wrong, "\n".join(wrong)


def test_padding():
    x = ost.asarray(X)
    for v in (0.0, -0.0, *NANS, 0, False):
        assert same_bits(ost.pad(x, 1, value=v), np.pad(X, 1, constant_values=v), True), v


def test_a_nan_is_the_same_every_time(tally):
    """Loops in plain Python that make NaN anew need one plan."""
    session = ost.connect(1)
    try:
        x, turns = ost.ones(3), 0
        known = None
        for k in range(40):
            made = ost.where(x > 0, float("nan"), x) + complex(math.inf, float("nan")) + k * 0.0
            made = ost.maximum(ost.real(made), float("nan"))
            np.asarray(made + ost.full(3, float("nan")))
            known = len(session.plans.plans) if k == 1 else known
            turns += 1
        assert len(session.plans.plans) == known
        f = ost.compile(lambda x, v: x + v, static="v")
        for _ in range(5):
            f(x, float("nan"))
        assert (f.hits, len(f.misses)) == (4, 1)
        tally("turns", turns)
    finally:
        session.close()


# -- texts, files and keys --------------------------------------------------------------------
VALUES = [v for family in FAMILIES.values() for v in family if not isinstance(v, np.generic)]
VALUES += [math.inf, -math.inf, complex(-math.inf, math.nan), complex(-0.0, -0.0), "1", None]
VALUES += [(v,) for v in VALUES] + [(0, (v, 1)) for v in VALUES] + [(), ((),)]


def graph_of(value: Any) -> Graph:
    spec = Spec((2,), complex128)
    return Graph((), (Node("full", (), (("value", value),), (spec,)),), (0,))


def bits(v: Any) -> Any:
    """What a value is, told in another way than the product tells it."""
    if isinstance(v, tuple):
        return tuple(map(bits, v))
    if isinstance(v, complex):
        return "c", bits(v.real), bits(v.imag)
    return (type(v).__name__, struct.pack(">d", v).hex()) if isinstance(v, float) else repr(v)


def test_texts_files_and_keys_agree(tally):
    graphs = [graph_of(v) for v in VALUES]
    ids = [Key(g, Target()).id for g in graphs]
    for v, g in zip(VALUES, graphs, strict=True):
        for made in (parse(show(g)), decode_graph(json.loads(json.dumps(encode_graph(g))))):
            assert bits(made.nodes[0].kw["value"]) == bits(v)
            assert made == g
            assert hash(made) == hash(g)
            assert digest(made) == digest(g)
    for i, j in itertools.product(range(len(VALUES)), repeat=2):
        alike = bits(VALUES[i]) == bits(VALUES[j])
        assert (graphs[i] == graphs[j]) == alike, (VALUES[i], VALUES[j])
        assert (ids[i] == ids[j]) == alike, (VALUES[i], VALUES[j])
        assert (exact(VALUES[i]) == exact(VALUES[j])) == alike, (VALUES[i], VALUES[j])
    tally("pairs of parameters", len(VALUES) ** 2)


def test_exact_of_what_may_be_static():
    from decimal import Decimal

    different = [
        *(frozenset({0.0}), frozenset({-0.0}), frozenset({0}), (0.0,), (-0.0,), [0.0]),
        *(Decimal("0"), Decimal("-0"), Decimal("0.0"), Fraction(0), 0, False, np.float64(0.0)),
        *(np.float32(0.0), np.float32(-0.0), np.dtype("float32"), "float32", np.float32),
    ]
    for i, j in itertools.product(range(len(different)), repeat=2):
        assert (exact(different[i]) == exact(different[j])) == (i == j), (
            different[i],
            different[j],
        )
    assert exact(float("nan")) == exact(float("nan"))
    assert hash(exact(float("nan"))) == hash(exact(float("nan")))


def test_files_refuse_what_is_no_nan():
    from ostinato.ops.core.encode import Malformed, decode_value

    for text in (
        "7ff0000000000000",
        "3ff0000000000000",
        "7FF8000000000001",
        "7ff8",
        "nan ",
        3,
        None,
    ):
        with pytest.raises(Malformed):
            decode_value({"f": text})


# -- containers -----------------------------------------------------------------------------
KEYS = [1, True, 1.0, 0, 0.0, -0.0, False, "1", None, (1,), (True,)]


@counts_traces
def test_keys_of_dicts():
    """A dict's keys come back as they were given, and functions see them as they are."""
    x = ost.ones(2)
    seen: list[str] = []

    @ost.compile
    def f(d: dict[Any, Any]) -> dict[Any, Any]:
        seen.append(repr(next(iter(d))))
        return {k: v * 2 for k, v in d.items()}

    for k in (*KEYS, *reversed(KEYS)):
        leaves, structure = tree.flatten({k: 1})
        assert repr(tree.unflatten(structure, leaves)) == repr({k: 1})
        assert repr(next(iter(f({k: x})))) == repr(k)
        assert repr(next(iter(ost.scan(lambda s, _: (s, None), {k: x}, length=2)[0]))) == repr(k)
    assert sorted(seen) == sorted(map(repr, KEYS))


def test_shapes_are_whole_numbers():
    """True is 1 in a shape, and prints as it."""
    for made in (ost.zeros((True, 7)), ost.zeros((1, 7)), ost.reshape(ost.ones(7), (True, -1))):
        assert "True" not in repr(made.shape)
        assert "True" not in repr(made.spec)


# -- what computes now --------------------------------------------------------------------------
def test_what_a_number_passes_through_is_not_skipped():
    """Whole numbers of 64 bits do not survive a float, nor products of complex numbers zeros' signs."""
    odd = np.array([2**53 + 1, -(2**62) - 1, 7])
    for kind, via, back in (
        *(("int64", "float64", "int64"), ("int64", "float64", "int32")),
        *(("uint64", "float64", "int64"), ("int64", "complex128", "bool")),
    ):
        x = odd.astype(kind)
        f = lambda x: x.astype(via).astype(back)  # noqa: B023, E731
        with np.errstate(all="ignore"):
            wanted = f(x)
        assert np.array_equal(ost.compile(f)(ost.asarray(x)), wanted), (kind, via, back)
    z = np.array(
        [complex(a, b) for a in (0.0, -0.0, 1.5, math.inf) for b in (0.0, -0.0, -2.0, math.inf)]
    )
    for one in (1, 1.0, 1 + 0j, complex(1, -0.0), 0, -0.0, complex(0, -0.0), complex(-0.0, 0)):
        for f in (lambda z: z * one, lambda z: one * z, lambda z: z / one, lambda z: z - one, lambda z: z + one):  # fmt: skip  # noqa: B023
            with np.errstate(all="ignore"):
                wanted = f(z)
            assert same_bits(ost.compile(f)(ost.asarray(z)), wanted, False), one


# -- no cache takes numbers --------------------------------------------------------------------
ROOT = Path(ost.__file__).resolve().parents[1]
MARKED = {"lru_cache", "cache"}


def cached_functions() -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for room in ("ops", "planner", "runtime", "ostinato", "io_pipeline"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.FunctionDef):
                    continue
                for mark in node.decorator_list:
                    text = ast.unparse(mark).split("(")[0].rpartition(".")[2]
                    if text in MARKED:
                        found.append((f"{room}/{path.name}:{node.name}", node))
    return found


def test_caches_take_no_numbers(tally):
    """What a cached function is given compares exactly: texts, whole numbers, dtypes, layouts, graphs."""
    found = cached_functions()
    assert len(found) > 40
    for name, node in found:
        for a in (*node.args.args, *node.args.kwonlyargs, *filter(None, [node.args.vararg])):
            said = ast.unparse(a.annotation) if a.annotation is not None else "nothing"
            words = {w.strip("[],. ") for w in said.replace("[", " ").replace("|", " ").split()}
            assert not words & {"float", "complex", "Any", "object", "Scalar", "nothing"}, (
                f"{name} is cached by {a.arg}: {said}"
            )
    tally("cached functions", len(found))


def test_annotations_are_what_they_say():
    """The test above reads annotations; one that was wrong would be found by this."""
    assert inspect.isfunction(functools.partial(exact).func)
    assert typing.get_type_hints(tree.fields_of.__wrapped__)["kind"] is type
    assert Spec((1,), float64) is Spec((1,), float64)
