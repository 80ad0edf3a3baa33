"""Optimizers over trees of parameters: descent with momentum, and methods with rates per element.

Each parameter is updated by itself, element by element (LARS and LAMB look at its norm, too), in float32
or wider. What is no array of floats is left alone. The state is plain data, `{"step": 3, "m": ..., "v":
...}`: trees like the parameters, with None where there is nothing to keep, laid out as these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError
from ostinato.ops.array.arithmetic import maximum, sign, sqrt
from ostinato.ops.array.casts import astype
from ostinato.ops.array.comparisons import logical_and
from ostinato.ops.array.creation import asarray, zeros, zeros_like
from ostinato.ops.array.elementwise import where
from ostinato.ops.array.transcendental import expm1
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import DType, float32, int32, is_float, is_inexact, promote
from ostinato.ops.core.tree import Structure, flatten, paths, unflatten
from ostinato.ops.core.user_line import misfit

from .schedules import Rate, rate_at

State = dict[str, Any]
SHARES = "numbers from 0 to below 1"
Mask = Callable[[str], bool] | Any  # of a leaf's path, such as "['conv'].bias"; or a tree of bools


def is_trained(x: Any, name: str = "") -> bool:
    """Whether a leaf is a parameter: floats, of an array or a number."""
    if not isinstance(x, (float, Array, np.ndarray, np.generic)) or not is_inexact(_dtype(x)):
        return False
    if is_float(_dtype(x)):
        return True
    got = f"a parameter {name} of complex numbers"
    do = "keep real and imaginary parts, and put them together in the loss"
    raise misfit(ArgumentError, "optim", got=got, needed="real ones", do=do)


def _dtype(x: Any) -> DType:
    return np.dtype(float) if isinstance(x, float) and not hasattr(x, "dtype") else x.dtype


def _is_share(x: Any) -> bool:
    return 0 <= x < 1


def wide(dtype: DType) -> DType:
    """The dtype in which a parameter is updated."""
    return promote(dtype, float32)


def zeros_laid_like(x: Any, dtype: DType) -> Array:
    """Zeros, in parts as another array's are."""
    if isinstance(x, Array) and not x._is_traced and x.ndim:
        return zeros(x.shape, dtype, split=x.split)
    return zeros_like(as_array(x), dtype)


def copy_of(x: Any, dtype: DType) -> Array:
    """A parameter's value in memory of its own, so that either may be given away; in parts as it is."""
    one = asarray(np.ones((), dtype))  # an operand, so that this is a product
    return astype(as_array(x), dtype) * one


def paired(grads: Any, trained: list[bool], structure: Structure) -> Iterable[Any]:
    """The gradients of parameters: a tree as these are, with whatever else left out or not."""
    leaves, found = flatten(grads)
    if found == structure:
        return [g for g, t in zip(leaves, trained, strict=True) if t]
    if len(leaves) == sum(trained):
        return leaves
    needed = f"a gradient for each parameter, as in {structure!r:.200}"
    raise misfit(ArgumentError, "optim", got=f"gradients {found!r:.200}", needed=needed)


@dataclass(frozen=True)
class _Now:
    """The moment of an update, for one parameter."""

    step: Array  # from 1 on
    rate: Any
    decay: float  # nothing where the mask says so
    is_masked: bool
    unbiased: tuple[Any, ...]


@dataclass(frozen=True)
class Optimizer:
    """The rule of an update: a class with `slots`, what it keeps for each parameter, and `leaf`, which
    gives a parameter's new value and what is kept of it.

        opt = ost.optim.AdamW(lr=ost.optim.Cosine(1e-3, 10_000), weight_decay=0.01)
        state = opt.init(params)
        params, state = opt.update(params, grads, state)

    lr: a number, an array, or a schedule: a function of the number of updates so far. weight_decay: as a
    part of the gradient, or beside it if `decoupled`. mask: which parameters decay: a function of a
    leaf's path, such as `lambda path: "bias" not in path`, or a tree of bools. master: parameters
    narrower than float32 are kept in that, too, and rounded from there.

    >>> ost.optim.SGD(0.1).update({"w": ost.ones(2)}, {"w": ost.ones(2)}, {"step": 0})[0]
    {'w': Array([0.9, 0.9], dtype=float64)}
    """

    lr: Rate
    weight_decay: float = field(default=0.0, kw_only=True)
    decoupled: bool = field(default=False, kw_only=True)
    mask: Mask = field(default=None, kw_only=True)
    master: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for f in fields(self):
            given = getattr(self, f.name)
            fine, needed = True, "a number that is 0 or more"
            if f.name == "betas":
                fine, needed = len(given) == 2 and all(map(_is_share, given)), SHARES
            elif f.name == "alpha":
                fine, needed = _is_share(given), SHARES
            elif type(given) in (int, float):
                fine = 0 <= given < math.inf
            if not fine:
                got = f"{f.name}={given!r:.60}"
                raise misfit(ArgumentError, type(self).__name__, got=got, needed=needed)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of what is kept for each parameter: arrays like it, of zeros at first."""
        return ()

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        """The new value of one parameter, and what is kept."""
        raise NotImplementedError

    def _first(self, p: Any, dtype: DType) -> Array:
        return zeros_laid_like(p, dtype)

    def _unbiased(self, step: Array) -> tuple[Any, ...]:
        """Numbers that all parameters share."""
        return ()

    def init(self, params: Any) -> State:
        """The state before the first update."""
        leaves, structure = flatten(params)
        names = paths(structure)
        trained = [is_trained(x, name) for x, name in zip(leaves, names, strict=True)]
        state: State = {"step": asarray(0, dtype=int32)}

        def filled(make: Callable[[Any], Any]) -> Any:
            both = zip(leaves, trained, strict=True)
            return unflatten(structure, [make(x) if t else None for x, t in both])

        for name in self.slots:
            state[name] = filled(lambda x: self._first(x, wide(_dtype(x))))
        if self.master:
            state["master"] = filled(
                lambda x: astype(as_array(x), float32) if wide(_dtype(x)) != _dtype(x) else None
            )
        return state

    def update(self, params: Any, grads: Any, state: State, *, lr: Any = None) -> tuple[Any, State]:
        """The parameters and the state after one update. lr: in the place of the optimizer's own."""
        leaves, structure = flatten(params)
        trained = [is_trained(x, name) for x, name in zip(leaves, paths(structure), strict=True)]
        slopes = iter(paired(grads, trained, structure))
        decays = self._decays(leaves, structure)
        kept = self._kept(state, leaves, trained, structure)
        before = as_array(state["step"])
        step = before + 1
        count = astype(step, float32)
        rate, unbiased = rate_at(self.lr if lr is None else lr, before), self._unbiased(count)

        made: dict[str, list[Any]] = {name: [] for name in ("", *kept)}
        for k, x in enumerate(leaves):
            if not trained[k]:
                made[""].append(x)
                for name in kept:
                    made[name].append(None)
                continue
            p, dtype = as_array(x), wide(_dtype(x))
            own = {name: values[k] for name, values in kept.items()}
            master = own.pop("master", None)
            now = _Now(
                count,
                _cast(rate, dtype),
                self.weight_decay if decays[k] else 0.0,
                not decays[k],
                tuple(_cast(u, dtype) for u in unbiased),
            )
            old = astype(p, dtype) if master is None else as_array(master)
            slope = astype(as_array(next(slopes)), dtype)
            new, after = self._decayed(old, slope, {n: as_array(v) for n, v in own.items()}, now)
            made[""].append(astype(new, p.dtype))
            for name in kept:
                value = after.get(name) if name != "master" or master is None else new
                made[name].append(value)
        trees = {name: unflatten(structure, values) for name, values in made.items()}
        return trees.pop(""), {"step": step, **trees}

    def _decayed(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        """An update with weight decay."""
        if now.decay and self.decoupled:
            p = p * (1 - now.rate * now.decay)
        elif now.decay:
            g = g + now.decay * p
        return self.leaf(p, g, kept, now)

    def _decays(self, leaves: list[Any], structure: Structure) -> list[bool]:
        if self.mask is None:
            return [True] * len(leaves)
        if callable(self.mask):
            return [bool(self.mask(path)) for path in paths(structure)]
        found, around = flatten(self.mask)
        if around != structure or not all(isinstance(x, (bool, np.bool_)) for x in found):
            got = f"{around!r:.200}"
            needed = f"a function of a leaf's path, or bools as in {structure!r:.200}"
            raise misfit(ArgumentError, f"{type(self).__name__}(mask=)", got=got, needed=needed)
        return found

    def _kept(
        self, state: State, leaves: list[Any], trained: list[bool], structure: Structure
    ) -> dict[str, list[Any]]:
        """Find what a state has for each leaf of the parameters."""
        names = (*self.slots, *(("master",) if self.master else ()))
        found: dict[str, list[Any]] = {}
        begin = "begin with opt.init(params)"
        if not isinstance(state, dict) or "step" not in state:
            got, slots = f"state={state!r:.60}", f"a dict of {', '.join(('step', *names))}"
            what = f"{type(self).__name__}.update"
            raise misfit(ArgumentError, what, got=got, needed=slots, do=begin)
        for name in names:
            kept = [
                t and (name != "master" or wide(_dtype(x)) != _dtype(x))
                for x, t in zip(leaves, trained, strict=True)
            ]
            needed = flatten(unflatten(structure, [0 if k else None for k in kept]))[1]
            values, around = flatten(state[name]) if name in state else ([], None)
            if around != needed:
                raise misfit(
                    ArgumentError,
                    f"{type(self).__name__}.update",
                    got=f"a state with {', '.join(map(str, state))}, whose {name} is {around!r:.200}",
                    needed=f"step, {', '.join(names)}, each as the parameters are",
                    do=begin,
                )
            rest = iter(values)
            found[name] = [next(rest) if k else None for k in kept]
        return found


def _cast(x: Any, dtype: DType) -> Any:
    """A scalar of the plan in a parameter's dtype, which would else become wider; numbers as they are."""
    return astype(x, dtype) if isinstance(x, Array) else x


def norm(x: Array) -> Array:
    """The square root of the sum of squares."""
    return sqrt((x * x).sum())


def trust(p: Array, step: Array) -> Array:
    """How large a parameter is beside its step; 1 where either is nothing."""
    size, length = norm(p), norm(step)
    fine = logical_and(size > 0, length > 0)
    return where(fine, size / where(fine, length, 1.0), 1.0)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum, dampened or Nesterov's.

    >>> opt = ost.optim.SGD(0.1, momentum=0.9)
    >>> w = ost.ones(2)
    >>> w, state = opt.update(w, ost.ones(2), opt.init(w))
    >>> w, state["velocity"]
    (Array([0.9, 0.9], dtype=float64), Array([1., 1.], dtype=float64))
    """

    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        if not self.momentum:
            return p - now.rate * g, {}
        v = self.momentum * kept["velocity"] + (1 - self.dampening) * g
        if self.dampening:
            v = where(now.step == 1, g, v)
        return p - now.rate * (g + self.momentum * v if self.nesterov else v), {"velocity": v}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Steps by running means of the gradient and of its square, without their bias to zero.

    >>> opt = ost.optim.Adam(lr=0.1)
    >>> w = ost.ones(2)
    >>> opt.update(w, ost.asarray([3.0, -1e-3]), opt.init(w))[0]
    Array([0.9, 1.1], dtype=float64)
    """

    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def _unbiased(self, step: Array) -> tuple[Any, ...]:
        """1 - beta ** step, to all digits."""
        return tuple(-expm1(step * math.log(b)) if b else 1.0 for b in self.betas)

    def _moments(self, g: Array, kept: State) -> tuple[Array, Array]:
        one, two = self.betas
        return one * kept["m"] + (1 - one) * g, two * kept["v"] + (1 - two) * (g * g)

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        m, v = self._moments(g, kept)
        first, second = now.unbiased
        step = (now.rate / first) * m / (sqrt(v) / second**0.5 + self.eps)
        return p - step, {"m": m, "v": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, with weight decay beside the gradient.

    >>> opt = ost.optim.AdamW(lr=0.1, weight_decay=0.5, mask=lambda path: "bias" not in path)
    >>> w = {"bias": ost.ones(1), "w": ost.ones(1)}
    >>> opt.update(w, w, opt.init(w))[0]
    {'bias': Array([0.9], dtype=float64), 'w': Array([0.85], dtype=float64)}
    """

    weight_decay: float = field(default=0.01, kw_only=True)
    decoupled: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Gradients over the root of the running mean of their squares, or of their variance if `centered`.

    >>> opt = ost.optim.RMSprop(lr=0.1, alpha=0.75)
    >>> w = ost.ones(1)
    >>> opt.update(w, ost.ones(1), opt.init(w))[0]
    Array([0.8], dtype=float64)
    """

    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("v", *["mean"] * self.centered, *["velocity"] * bool(self.momentum))

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        made = {"v": self.alpha * kept["v"] + (1 - self.alpha) * (g * g)}
        spread = made["v"]
        if self.centered:
            made["mean"] = self.alpha * kept["mean"] + (1 - self.alpha) * g
            spread = maximum(spread - made["mean"] * made["mean"], 0.0)  # but for rounding
        step = g / (sqrt(spread) + self.eps)
        if self.momentum:
            step = made["velocity"] = self.momentum * kept["velocity"] + step
        return p - now.rate * step, made


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Gradients over the root of the sum of all their squares so far.

    >>> opt = ost.optim.Adagrad(lr=0.1)
    >>> w = ost.ones(1)
    >>> opt.update(w, ost.ones(1), opt.init(w))[0]
    Array([0.9], dtype=float64)
    """

    lr: Rate = 1e-2
    eps: float = 1e-10
    initial: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("sum",)

    def _first(self, p: Any, dtype: DType) -> Array:
        return zeros_laid_like(p, dtype) + self.initial

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        total = kept["sum"] + g * g
        return p - now.rate * g / (sqrt(total) + self.eps), {"sum": total}


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one length in each element: the sign of a momentum. Weight decay is beside the gradient.

    >>> opt = ost.optim.Lion(lr=0.1)
    >>> w = ost.ones(2)
    >>> opt.update(w, ost.asarray([3.0, -1e-3]), opt.init(w))[0]
    Array([0.9, 1.1], dtype=float64)
    """

    lr: Rate = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    decoupled: bool = field(default=True, kw_only=True)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m",)

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        one, two = self.betas
        step = sign(one * kept["m"] + (1 - one) * g)
        return p - now.rate * step, {"m": two * kept["m"] + (1 - two) * g}


@dataclass(frozen=True)
class LARS(Optimizer):
    """Descent for large batches: each parameter's rate goes by its norm over that of its gradient.

    What the mask leaves out neither decays nor is scaled, as is usual for biases and norms.

    >>> opt = ost.optim.LARS(lr=1.0, momentum=0.0, coefficient=0.1)
    >>> w = ost.ones(4)
    >>> opt.update(w, 100 * ost.ones(4), opt.init(w))[0]
    Array([0.9, 0.9, 0.9, 0.9], dtype=float64)
    """

    momentum: float = 0.9
    nesterov: bool = False
    coefficient: float = 0.001
    eps: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    def _decayed(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        return self.leaf(p, g, kept, now)

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        step = g + now.decay * p if now.decay else g
        if not now.is_masked:
            size, slope = norm(p), norm(g)
            fine = logical_and(size > 0, slope > 0)
            length = where(fine, slope + now.decay * size + self.eps, 1.0)
            step = where(fine, self.coefficient * size / length, 1.0) * step
        v = self.momentum * kept["velocity"] + now.rate * step
        return p - (now.rate * step + self.momentum * v if self.nesterov else v), {"velocity": v}


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam for large batches: each parameter's step goes by its norm over that of Adam's step.

    What the mask leaves out neither decays nor is scaled.

    >>> opt = ost.optim.LAMB(lr=0.5)
    >>> w = 4 * ost.ones(2)
    >>> opt.update(w, ost.ones(2), opt.init(w))[0]
    Array([2., 2.], dtype=float64)
    """

    eps: float = 1e-6

    def _decayed(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        return self.leaf(p, g, kept, now)

    def leaf(self, p: Array, g: Array, kept: State, now: _Now) -> tuple[Array, State]:
        m, v = self._moments(g, kept)
        first, second = now.unbiased
        step = m / first / (sqrt(v / second) + self.eps)
        step = step + now.decay * p if now.decay else step
        scale = 1.0 if now.is_masked else trust(p, step)
        return p - now.rate * scale * step, {"m": m, "v": v}
