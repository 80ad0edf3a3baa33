"""Random programs over random shapes, to be run by Ostinato and by NumPy.

A program is made step by step while NumPy runs it, so that every step makes sense and stays finite. Each
operation is a pair of functions, one of Ostinato and one of NumPy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ostinato as ost

Values = list[Any]
MOST = 3000  # elements of a value
LARGEST = 1e3  # of its elements
EXTENTS = (0, 1, 1, 2, 3, 4, 5, 6, 7, 9)  # of inputs


@dataclass
class Program:
    """Inputs, and steps that each add a value; a step is (name, operands, Ostinato's, NumPy's)."""

    inputs: list[np.ndarray]
    steps: list[tuple[str, tuple[int, ...], Callable[..., Any], Callable[..., Any]]] = field(
        default_factory=list
    )
    outputs: list[int] = field(default_factory=list)

    def by_ostinato(self, *inputs: Any) -> list[Any]:
        return self._run(inputs, 2)

    def by_numpy(self) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in self._run(self.inputs, 3)]

    def _run(self, inputs: Sequence[Any], which: int) -> Values:
        values: Values = list(inputs)
        for step in self.steps:
            values.append(step[which](*(values[v] for v in step[1])))
        return [values[v] for v in self.outputs]

    def __repr__(self) -> str:
        ins = ", ".join(str(x.shape) for x in self.inputs)
        first = len(self.inputs)
        lines = [f"v{first + k} = {s[0]}{s[1]}" for k, s in enumerate(self.steps)]
        return f"inputs {ins}\n" + "\n".join(lines) + f"\nreturn {self.outputs}"


def make_program(
    r: random.Random,
    length: int = 8,
    extents: Sequence[int] = EXTENTS,
    most: int = MOST,
    names: Sequence[str] | None = None,
) -> Program:
    """A program of so many steps at most, over arrays of these extents, of these steps."""
    inputs = [_input(r, extents) for _ in range(r.randint(1, 3))]
    program = Program(inputs)
    values: Values = list(inputs)
    steps = [s for s in STEPS if names is None or s[0] in names]
    for _ in range(length):
        made = _step(r, values, steps)
        if made is None:
            continue
        name, operands, ours, theirs = made
        with np.errstate(all="ignore"):
            y = np.asarray(theirs(*(values[v] for v in operands)))
        if y.size > most or (y.dtype.kind == "f" and not np.all(np.abs(y) <= LARGEST)):
            continue
        values.append(y)
        program.steps.append((name, operands, ours, theirs))
    fresh = list(range(len(inputs), len(values)))
    program.outputs = sorted(r.sample(fresh, min(len(fresh), r.randint(1, 3)))) if fresh else [0]
    if fresh and fresh[-1] not in program.outputs:
        program.outputs.append(fresh[-1])
    return program


def _input(r: random.Random, extents: Sequence[int]) -> np.ndarray:
    shape = tuple(r.choice(extents) for _ in range(r.choice((0, 1, 2, 2, 2, 3))))
    return np.random.default_rng(r.getrandbits(32)).normal(size=shape)


def _step(r: random.Random, values: Values, steps: Sequence[tuple[str, Any]]) -> Any:
    name, make = r.choice(steps)
    k = r.randrange(len(values))
    if r.random() < 0.6:  # what was made last leads to deeper programs
        k = len(values) - 1
    return make(r, values, k, name)


# -- steps: (name, operands, ours, theirs), or None where it does not fit --------------------
def _elementwise(ours: Any, theirs: Any) -> Any:
    def make(r: random.Random, values: Values, k: int, name: str) -> Any:
        if values[k].dtype.kind != "f":
            return None
        return name, (k,), ours, theirs

    return make


def _pairwise(ours: Any, theirs: Any) -> Any:
    def make(r: random.Random, values: Values, k: int, name: str) -> Any:
        x = values[k]
        fits = [
            j for j, y in enumerate(values) if y.dtype.kind == "f" and _broadcasts(x.shape, y.shape)
        ]
        if x.dtype.kind != "f" or not fits:
            return None
        return name, (k, r.choice(fits)), ours, theirs

    return make


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def _axes(r: random.Random, x: np.ndarray) -> Any:
    if x.ndim == 0:
        return None
    return r.choice(
        (None, r.randrange(x.ndim), tuple(sorted(r.sample(range(x.ndim), r.randint(1, x.ndim)))))
    )


def _reduction(ours: Any, theirs: Any, empty: bool = True) -> Any:
    def make(r: random.Random, values: Values, k: int, name: str) -> Any:
        x = values[k]
        if x.dtype.kind != "f" or (x.size == 0 and not empty):
            return None
        axis, keep = _axes(r, x), r.random() < 0.3
        return (
            f"{name}[axis={axis},keepdims={keep}]",
            (k,),
            lambda x: ours(x, axis=axis, keepdims=keep),
            lambda x: theirs(x, axis=axis, keepdims=keep),
        )

    return make


def _along(ours: Any, theirs: Any, empty: bool = True) -> Any:
    def make(r: random.Random, values: Values, k: int, name: str) -> Any:
        x = values[k]
        if x.ndim == 0 or x.dtype.kind != "f" or (x.size == 0 and not empty):
            return None
        axis = r.randrange(x.ndim)
        return f"{name}[{axis}]", (k,), lambda x: ours(x, axis), lambda x: theirs(x, axis)

    return make


def _steady(xp: Any, x: Any) -> Any:
    """Coarse numbers, so that rounding decides no comparison."""
    return xp.floor(x * 16 + 0.123)


def _matmul(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim < 1 or x.dtype.kind != "f":
        return None
    fits = [
        j
        for j, y in enumerate(values)
        if y.ndim >= 1
        and y.dtype.kind == "f"
        and y.shape[-2:][0] == x.shape[-1]
        and _broadcasts(x.shape[:-2], y.shape[:-2])
    ]
    if fits and (x.ndim == 1 or r.random() < 0.7):
        return name, (k, r.choice(fits)), lambda a, b: a @ b, lambda a, b: a @ b
    if x.ndim == 1:
        return None
    return f"{name}[own transpose]", (k,), lambda a: a @ a.mT, lambda a: a @ np.swapaxes(a, -1, -2)


def _einsum(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.dtype.kind != "f" or not 1 <= x.ndim <= 3:
        return None
    left = "abc"[: x.ndim]
    pairs = [j for j, y in enumerate(values) if y.dtype.kind == "f" and 1 <= y.ndim <= 3]
    j = r.choice(pairs)
    right = ""
    sizes = dict(zip(left, x.shape, strict=True))
    for n in values[j].shape:
        same = [c for c in left if sizes[c] == n and c not in right]
        right += r.choice(same) if same and r.random() < 0.8 else "xyz"[len(right)]
    every = list(dict.fromkeys(left + right))
    out = "".join(r.sample(every, r.randint(0, min(3, len(every)))))
    text = f"{left},{right}->{out}"
    return (
        f"einsum[{text}]",
        (k, j),
        lambda a, b: ost.einsum(text, a, b),
        lambda a, b: np.einsum(text, a, b),
    )


def _reshape(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    n = x.size
    shape: list[int] = []
    while n > 1 and len(shape) < 3 and r.random() < 0.8:
        d = r.choice([d for d in range(1, n + 1) if n % d == 0])
        shape.append(d)
        n //= d
    shape.append(n)
    r.shuffle(shape)
    new = tuple(shape)
    return f"reshape{new}", (k,), lambda x: ost.reshape(x, new), lambda x: np.reshape(x, new)


def _permute(r: random.Random, values: Values, k: int, name: str) -> Any:
    """One permutation, or two in a row."""
    ndim = values[k].ndim
    orders = [tuple(r.sample(range(ndim), ndim)) for _ in range(r.choice((1, 2)))]

    def run(permute: Any) -> Any:
        def both(x: Any) -> Any:
            for axes in orders:
                x = permute(x, axes)
            return x

        return both

    return f"permute{orders}", (k,), run(ost.permute_dims), run(np.transpose)


def _number(r: random.Random, values: Values, k: int, name: str) -> Any:
    """Positions along an axis, added."""
    x = values[k]
    if x.ndim == 0:
        return None
    axis = r.randrange(x.ndim)
    line = [1] * x.ndim
    line[axis] = n = x.shape[axis]
    split = r.choice((None, 0))
    return (
        f"number[{axis},{split}]",
        (k,),
        lambda x: x + ost.reshape(ost.arange(n, split=split), line) * 0.125,
        lambda x: x + np.arange(n).reshape(line) * 0.125,
    )


def _expand(r: random.Random, values: Values, k: int, name: str) -> Any:
    if values[k].ndim > 3:
        return None
    axis = r.randint(0, values[k].ndim)
    return (
        f"expand[{axis}]",
        (k,),
        lambda x: ost.expand_dims(x, axis=axis),
        lambda x: np.expand_dims(x, axis),
    )


def _squeeze(r: random.Random, values: Values, k: int, name: str) -> Any:
    ones = [d for d, n in enumerate(values[k].shape) if n == 1]
    if not ones:
        return None
    axis = r.choice(ones)
    return f"squeeze[{axis}]", (k,), lambda x: ost.squeeze(x, axis), lambda x: np.squeeze(x, axis)


def _broadcast(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    shape = tuple(r.randint(1, 4) if n == 1 else n for n in x.shape)
    if x.ndim < 3:
        shape = (r.randint(1, 3), *shape)
    return (
        f"broadcast{shape}",
        (k,),
        lambda x: ost.broadcast_to(x, shape),
        lambda x: np.broadcast_to(x, shape),
    )


def random_slice(r: random.Random, n: int) -> slice:
    """Any slice, forwards or backwards, inside or beyond."""
    step = r.choice((1, 1, 1, 2, 3, -1, -2))
    start = r.choice((None, r.randint(-n - 1, n + 1)))
    stop = r.choice((None, r.randint(-n - 1, n + 1)))
    return slice(start, stop, step)


def _slice(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0:
        return None
    key: list[Any] = [
        r.randrange(-n, n) if n and r.random() < 0.15 else random_slice(r, n) for n in x.shape
    ]
    if r.random() < 0.2:
        key.insert(r.randint(0, len(key)), None)
    made = tuple(key)
    return f"slice[{made}]", (k,), lambda x: x[made], lambda x: x[made]


def _concat(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0:
        return None
    axis = r.randrange(x.ndim)
    fits = [
        j
        for j, y in enumerate(values)
        if y.ndim == x.ndim
        and y.dtype == x.dtype
        and all(d == axis or m == n for d, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)))
    ]
    chosen = (k, *(r.choice(fits) for _ in range(r.randint(1, 2))))
    return (
        f"concat[{axis}]",
        chosen,
        lambda *xs: ost.concat(list(xs), axis=axis),
        lambda *xs: np.concatenate(xs, axis=axis),
    )


def _pad(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    widths = [(r.randint(0, 3), r.randint(0, 3)) for _ in x.shape]
    if x.ndim == 0:
        return None
    return f"pad{widths}", (k,), lambda x: ost.pad(x, widths), lambda x: np.pad(x, widths)


def _roll(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0:
        return None
    axis, shift = r.randrange(x.ndim), r.randint(-5, 5)
    return (
        f"roll[{shift},{axis}]",
        (k,),
        lambda x: ost.roll(x, shift, axis=axis),
        lambda x: np.roll(x, shift, axis),
    )


def _repeat(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0:
        return None
    axis, n = r.randrange(x.ndim), r.randint(1, 3)
    if r.random() < 0.5:
        return (
            f"repeat[{n},{axis}]",
            (k,),
            lambda x: ost.repeat(x, n, axis=axis),
            lambda x: np.repeat(x, n, axis),
        )
    counts = tuple(r.randint(1, 2) for _ in x.shape)
    return f"tile{counts}", (k,), lambda x: ost.tile(x, counts), lambda x: np.tile(x, counts)


def _take(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = r.randrange(x.ndim)
    shape = tuple(r.randint(0, 4) for _ in range(r.randint(0, 2)))
    places = np.random.default_rng(r.getrandbits(32)).integers(-x.shape[axis], x.shape[axis], shape)
    return (
        f"take[{places.tolist()},{axis}]",
        (k,),
        lambda x: ost.take(x, places, axis=axis),
        lambda x: np.take(x, places, axis),
    )


def _take_along(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = r.randrange(x.ndim)
    shape = [r.randint(1, 4) if d == axis else n for d, n in enumerate(x.shape)]
    places = np.random.default_rng(r.getrandbits(32)).integers(0, x.shape[axis], shape)
    return (
        f"take_along[{axis}]",
        (k,),
        lambda x: ost.take_along_axis(x, ost.asarray(places), axis=axis),
        lambda x: np.take_along_axis(x, places, axis),
    )


def _update(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0 or x.dtype.kind != "f":
        return None
    key = tuple(random_slice(r, n) for n in x.shape)
    mode = r.choice(("set", "add"))
    fits = [j for j, y in enumerate(values) if y.shape == x[key].shape and y.dtype.kind == "f"]

    def theirs(x: Any, v: Any = 2.5) -> Any:
        y = x.copy()
        if mode == "set":
            y[key] = v
        else:
            y[key] += v
        return y

    def ours(x: Any, v: Any = 2.5) -> Any:
        return getattr(x.at[key], mode)(v)

    return f"at{key}.{mode}", (k, *([r.choice(fits)] if fits else [])), ours, theirs


def _scatter(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.ndim == 0 or 0 in x.shape or x.dtype.kind != "f":
        return None
    axis = r.randrange(x.ndim)
    places = np.random.default_rng(r.getrandbits(32)).integers(
        -x.shape[axis], x.shape[axis], r.randint(0, 5)
    )
    key = (slice(None),) * axis + (places,)

    def theirs(x: Any) -> Any:
        y = x.copy()
        np.add.at(y, key, 1.5)
        return y

    return f"scatter[{places.tolist()},{axis}]", (k,), lambda x: x.at[key].add(1.5), theirs


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _norm(x: Any, axis: int) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


def _resplit(r: random.Random, values: Values, k: int, name: str) -> Any:
    seed = r.getrandbits(16)

    def ours(x: Any) -> Any:
        mesh = ost.session().target.mesh
        pick = random.Random(seed)
        split = tuple(pick.choice((None, *range(x.ndim))) for _ in mesh)
        return x.resplit(split)

    return "resplit", (k,), ours, lambda x: x


def _loop(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.dtype.kind != "f" or x.ndim == 0:
        return None
    n = r.randint(0, 4)

    def turn(s: Any) -> Any:
        return s * 0.5 + x_part(s)

    def x_part(s: Any) -> Any:
        return s.sum(0, keepdims=True) * 0.1

    def theirs(x: Any) -> Any:
        for _ in range(n):
            x = turn(x)
        return x

    return f"repeat_loop[{n}]", (k,), lambda x: ost.repeat(n, turn, x), theirs


def _scan(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.dtype.kind != "f" or x.ndim == 0:
        return None
    reverse = r.random() < 0.5

    def ours(x: Any) -> Any:
        return ost.scan(
            lambda s, v: (s * 0.5 + v, s + v * 2), ost.sum(x, axis=0) * 0, x, reverse=reverse
        )[1]

    def theirs(x: Any) -> Any:
        s, ys = np.zeros(x.shape[1:]), []
        for v in x[::-1] if reverse else x:
            ys.append(s + v * 2)
            s = s * 0.5 + v
        return np.stack(ys[::-1] if reverse else ys) if ys else np.zeros((0, *x.shape[1:]))

    return f"scan[{reverse}]", (k,), ours, theirs


def _while(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.dtype.kind != "f" or x.size == 0:
        return None

    def theirs(x: Any) -> Any:
        while np.abs(x).sum() > 1.0717:
            x = x * 0.4
        return x

    return (
        "while",
        (k,),
        lambda x: ost.while_loop(lambda s: ost.abs(s).sum() > 1.0717, lambda s: s * 0.4, x),
        theirs,
    )


def _cond(r: random.Random, values: Values, k: int, name: str) -> Any:
    x = values[k]
    if x.dtype.kind != "f" or x.size == 0:
        return None
    return (
        "cond",
        (k,),
        lambda x: ost.cond(_steady(ost, x).sum() > 0, lambda a: a + 1, lambda a: -a, x),
        lambda x: x + 1 if _steady(np, x).sum() > 0 else -x,
    )


def _triangle(r: random.Random, values: Values, k: int, name: str) -> Any:
    if values[k].ndim < 2:
        return None
    d = r.randint(-2, 2)
    return f"tril[{d}]", (k,), lambda x: ost.tril(x, k=d), lambda x: np.tril(x, d)


def _diagonal(r: random.Random, values: Values, k: int, name: str) -> Any:
    if values[k].ndim < 2:
        return None
    d = r.randint(-2, 2)
    return (
        f"diagonal[{d}]",
        (k,),
        lambda x: ost.linalg.diagonal(x, offset=d),
        lambda x: np.diagonal(x, d, -2, -1),
    )


def _one_hot(x: Any, axis: int) -> Any:
    return np.eye(5)[np.argmax(_steady(np, x), axis).clip(0, 4)]


STEPS: list[tuple[str, Any]] = [
    ("tanh", _elementwise(ost.tanh, np.tanh)),
    ("negative", _elementwise(ost.negative, np.negative)),
    ("halve", _elementwise(lambda x: x * 0.5 - 1, lambda x: x * 0.5 - 1)),
    ("add", _pairwise(ost.add, np.add)),
    ("multiply", _pairwise(ost.multiply, np.multiply)),
    ("subtract", _pairwise(ost.subtract, np.subtract)),
    ("maximum", _pairwise(ost.maximum, np.maximum)),
    ("where", _pairwise(lambda x, y: ost.where(x > 0.05, x, y), lambda x, y: np.where(x > 0.05, x, y))),
    ("sum", _reduction(ost.sum, np.sum)),
    ("mean", _reduction(ost.mean, np.mean, empty=False)),
    ("var", _reduction(ost.var, np.var, empty=False)),
    ("max", _reduction(ost.max, np.max, empty=False)),
    ("min", _reduction(ost.min, np.min, empty=False)),
    ("any", _reduction(lambda x, **k: ost.any(_steady(ost, x) > 16, **k), lambda x, **k: np.any(_steady(np, x) > 16, **k))),
    ("argmin", _along(lambda x, a: ost.argmin(_steady(ost, x), axis=a), lambda x, a: np.argmin(_steady(np, x), a), False)),
    ("argmax", _along(lambda x, a: ost.argmax(_steady(ost, x), axis=a), lambda x, a: np.argmax(_steady(np, x), a), False)),
    ("cumulative_sum", _along(lambda x, a: ost.cumulative_sum(x, axis=a), np.cumsum)),
    ("sort", _along(lambda x, a: ost.sort(x, axis=a), np.sort)),
    ("argsort", _along(lambda x, a: ost.argsort(_steady(ost, x), axis=a), lambda x, a: np.argsort(_steady(np, x), a, kind="stable"))),
    ("flip", _along(lambda x, a: ost.flip(x, axis=a), np.flip)),
    ("softmax", _along(lambda x, a: ost.nn.softmax(x, axis=a), _softmax, False)),
    ("layer_norm", _along(lambda x, a: ost.nn.layer_norm(x, axis=a), _norm, False)),
    ("diff", _along(lambda x, a: ost.diff(x, axis=a), lambda x, a: np.diff(x, axis=a), False)),
    ("one_hot", _along(lambda x, a: ost.nn.one_hot(ost.clip(ost.argmax(_steady(ost, x), axis=a), 0, 4), 5, dtype=ost.float64), _one_hot, False)),
    ("matmul", _matmul),
    ("einsum", _einsum),
    ("reshape", _reshape),
    ("permute", _permute),
    ("number", _number),
    ("expand", _expand),
    ("squeeze", _squeeze),
    ("broadcast", _broadcast),
    ("slice", _slice),
    ("slice again", _slice),
    ("concat", _concat),
    ("pad", _pad),
    ("roll", _roll),
    ("repeat", _repeat),
    ("take", _take),
    ("take_along", _take_along),
    ("update", _update),
    ("update again", _update),
    ("scatter", _scatter),
    ("resplit", _resplit),
    ("loop", _loop),
    ("scan", _scan),
    ("while", _while),
    ("cond", _cond),
    ("triangle", _triangle),
    ("diagonal", _diagonal),
]  # fmt: skip
