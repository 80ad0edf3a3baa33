"""Networks that go through sequences with a state: LSTM, GRU and plain ones, with PyTorch's weights. What
is made of the inputs is one product of all times; each turn multiplies the state alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import concat, stack
from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.creation import iota
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.shape import accumulator, expand_dims, matrix_transpose, moveaxis, widened
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.array.transcendental import sigmoid, tanh
from ostinato.ops.core.spec import Shape
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..flow.repeat_scan import scan
from ..random.seeds import fold
from .composed_layers import dropout as drop
from .composed_layers import relu

__all__ = ["gru", "lstm", "rnn"]

Weights = Sequence[Sequence[Operandish]]
States = tuple[Array, ...]
Turn = Callable[[Array, States, Array, Array | None], States]
Layout = Literal["NTC", "TNC"]


def _gates(z: Array, size: int, count: int) -> list[Array]:
    return [slice_axes(z, {1: (k * size, size, 1)}) for k in range(count)]


def _by_state(h: Array, u: Array, b: Array | None) -> Array:
    made = matmul(h, matrix_transpose(u))
    return made if b is None else made + b


def _weights_of(
    one: Sequence[Operandish], features: int, gates: int, name: str
) -> tuple[Array, Array, list[Array]]:
    """The weights of inputs and of states, and their numbers to add."""
    found = [floating(v) for v in one]
    if 2 <= len(found) <= 4 and found[1].ndim == 2:
        w, u, *biases = [widened(v) for v in found]
        rows = gates * u.shape[1]
        if {(rows,)} >= {b.shape for b in biases} and (w.shape, u.shape[0]) == (
            (rows, features),
            rows,
        ):
            return w, u, biases
    got, needed = (
        "weights of shapes " + ", ".join(str(v.shape) for v in found),
        f"({gates} * size, {features}) for inputs, ({gates} * size, size) for states, and one or two"
        f" biases of {gates} * size or none",
    )
    raise misfit(ShapeError, name, got=got, needed=needed)


def _through(
    name: str,
    x: Operandish,
    weights: Weights,
    initial: Sequence[Operandish | None],
    turn: Turn,
    gates: int,
    bidirectional: bool,
    lengths: Operandish | None,
    layout: str,
    dropout: float,
    seed: Any,
    apart: bool = False,
) -> tuple[Array, list[Array]]:
    """All layers, one after the other, and their last states; with biases of states `apart`, or added to those
    of inputs."""
    x = floating(x)
    if layout not in ("NTC", "TNC") or x.ndim != 3:
        got = f"layout={layout!r:.20} of {x.ndim} axes"
        raise misfit(ArgumentError, name, got=got, needed="'NTC' or 'TNC', and three axes")
    directions = 1 + bidirectional
    if not weights or len(weights) % directions:
        needed = "one for each layer" + " and direction" * bidirectional
        raise misfit(ArgumentError, name, got=f"{len(weights)} tuples of weights", needed=needed)
    y = moveaxis(x, 0, 1) if layout == "NTC" else x
    y = astype(y, accumulator(x.dtype))
    long, samples = y.shape[:2]
    alive: Array | None = None
    if lengths is not None:
        alive = expand_dims(iota((long, samples), 0) < as_array(lengths), axis=2)
    starts = [None if s is None else floating(s) for s in initial]
    last: list[States] = []
    for k, one in enumerate(weights):
        if k % directions == 0:
            below, made = y, list[Array]()
        w, u, biases = _weights_of(one, below.shape[2], gates, name)
        of_states = biases.pop() if apart and len(biases) == 2 else None
        z = matmul(below, matrix_transpose(w))
        for b in biases:
            z = z + b
        shape = (len(weights), samples, u.shape[1])
        begin = tuple([_start(s, k, shape, z, name) for s in starts])
        step = partial(_step, turn, u, of_states)
        items = (z,) if alive is None else (z, alive)
        end, out = scan(step, begin, items, reverse=k % directions == 1)
        last.append(end)
        made.append(out)
        if len(made) == directions:
            y = made[0] if directions == 1 else concat(made, axis=2)
            if dropout and k + 1 < len(weights):
                y = drop(y, dropout, seed=None if seed is None else fold(seed, k))
    y = astype(moveaxis(y, 0, 1) if layout == "NTC" else y, x.dtype)
    return y, [astype(stack(list(states)), x.dtype) for states in zip(*last, strict=True)]


def _start(given: Array | None, k: int, shape: Shape, like: Array, name: str) -> Array:
    """The first state of one layer and direction."""
    if given is None:
        return apply("full", shape=shape[1:], value=0.0, dtype=like.dtype)
    if given.shape != shape:
        got = f"an initial state {given.spec.bare}"
        raise misfit(ShapeError, name, got=got, needed=f"shape {shape}")
    return astype(given[k], like.dtype)


def _step(
    turn: Turn, u: Array, b: Array | None, state: States, item: Sequence[Array]
) -> tuple[States, Array]:
    """States after a turn, of samples that are not over."""
    after = turn(item[0], state, u, b)
    if len(item) == 1:
        return after, after[0]
    kept = tuple([where(item[1], new, old) for new, old in zip(after, state, strict=True)])
    return kept, where(item[1], kept[0], 0)


def lstm(
    x: Operandish,
    weights: Weights,
    initial: tuple[Operandish, Operandish] | None = None,
    /,
    *,
    bidirectional: bool = False,
    lengths: Operandish | None = None,
    layout: Layout = "NTC",
    dropout: float = 0.0,
    seed: Any = None,
) -> tuple[Array, tuple[Array, Array]]:
    """Long short-term memory: what comes out of the last layer at each time, and all layers' last states h and
    c, of shape (layers, samples, size).

    Each layer has a tuple of weights as PyTorch has them, for inputs (4*size, features) and for states
    (4*size, size), whose rows are for the input, forget, cell and output gate, then one or two biases or none;
    a bidirectional layer has two such tuples. `layout`: samples, time, channels, or time first. Behind
    its length a sample gives zeros and keeps its state. `dropout`: the rate at which what one layer
    gives the next one is dropped, as `ost.nn.dropout` does with this seed.

    >>> w = [(ost.ones((8, 3)), ost.ones((8, 2)))]
    >>> y, (h, c) = ost.nn.lstm(ost.zeros((1, 5, 3)), w)
    >>> y.shape, c
    ((1, 5, 2), Array([[[0., 0.]]], dtype=float64))
    """

    def turn(z: Array, state: States, u: Array, b: Array | None) -> States:
        h, c = state
        i, f, g, o = _gates(z + _by_state(h, u, b), u.shape[1], 4)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    start = (None, None) if initial is None else initial
    how = (bidirectional, lengths, layout, dropout, seed)
    y, (h, c) = _through("lstm", x, weights, start, turn, 4, *how)
    return y, (h, c)


def gru(
    x: Operandish,
    weights: Weights,
    initial: Operandish | None = None,
    /,
    *,
    linear_before_reset: bool = True,
    bidirectional: bool = False,
    lengths: Operandish | None = None,
    layout: Layout = "NTC",
    dropout: float = 0.0,
    seed: Any = None,
) -> tuple[Array, Array]:
    """Gated recurrent units, as `lstm`; rows of weights are for the reset, update and new gate. The state is
    reset behind its product (as in PyTorch) or before it (as in the paper). Of one bias, the state has
    none.

    >>> y, h = ost.nn.gru(ost.ones((1, 5, 3)), [(ost.zeros((6, 3)), ost.zeros((6, 2)))])
    >>> h
    Array([[[0., 0.]]], dtype=float64)
    """

    def turn(z: Array, state: States, u: Array, b: Array | None) -> States:
        (h,), size = state, u.shape[1]
        r, s, n = _gates(z, size, 3)
        if linear_before_reset:
            hr, hs, hn = _gates(_by_state(h, u, b), size, 3)
            r, s = sigmoid(r + hr), sigmoid(s + hs)
            n = tanh(n + r * hn)
        else:
            both, new = (
                slice_axes(u, {0: (k, m, 1)}) for k, m in ((0, 2 * size), (2 * size, size))
            )
            hr, hs = _gates(_by_state(h, both, None), size, 2)
            r, s = sigmoid(r + hr), sigmoid(s + hs)
            n = tanh(n + _by_state(r * h, new, None))
        return ((1 - s) * n + s * h,)

    how = (bidirectional, lengths, layout, dropout, seed, linear_before_reset)
    y, (h,) = _through("gru", x, weights, (initial,), turn, 3, *how)
    return y, h


def rnn(
    x: Operandish,
    weights: Weights,
    initial: Operandish | None = None,
    /,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    bidirectional: bool = False,
    lengths: Operandish | None = None,
    layout: Layout = "NTC",
    dropout: float = 0.0,
    seed: Any = None,
) -> tuple[Array, Array]:
    """A plain recurrent network, as `lstm`, whose weights have `size` rows.

    >>> y, h = ost.nn.rnn(ost.ones((1, 2, 1)), [([[1.0]], [[0.0]])])
    >>> y
    Array([[[0.7616],
            [0.7616]]], dtype=float64)
    """
    by: dict[str, Any] = {"tanh": tanh, "relu": relu}
    if activation not in by:
        got = f"activation={activation!r:.20}"
        raise misfit(ArgumentError, "rnn", got=got, needed="'tanh' or 'relu'")

    def turn(z: Array, state: States, u: Array, b: Array | None) -> States:
        return (by[activation](z + _by_state(state[0], u, b)),)

    how = (bidirectional, lengths, layout, dropout, seed)
    y, (h,) = _through("rnn", x, weights, (initial,), turn, 1, *how)
    return y, h
