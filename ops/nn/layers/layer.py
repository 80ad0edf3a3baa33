"""What a layer is: data, which a call reads and never writes.

    model = ost.nn.init(Net(), seed=0)
    y = model(x)                                 # inference
    y, model = model.apply(x, key=step)          # training: what learns of the data is in the new model

A `Layer` is a pytree. Its arrays are leaves; all else that it holds, such as a stride, a rate or a
function, belongs to its structure, so that another one is another plan. Whether this is training, and
the key of what is drawn, are arguments of the call, and hold for all layers that it calls. Layers that
keep statistics say what these become (`self.update`), and `apply` returns a model that has them."""

from __future__ import annotations

import inspect
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from ostinato.ops.array.casts import as_dtype
from ostinato.ops.core import array
from ostinato.ops.core.array import Array, Trace
from ostinato.ops.core.spec import DType, DTypeLike, Shape, is_inexact
from ostinato.ops.core.tree import LEAF, Recorded, Structure, flatten, paths, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.seeds import fold, mix

from ostinato.errors import ArgumentError, AssignmentError

from .initializers import Fans, Initializer

__all__ = ["Layer", "combine", "init", "parameters", "partition"]
T = TypeVar("T")


class Initial:
    """A weight before `init`: what it will be."""

    __slots__ = ("dtype", "fans", "make", "shape")

    def __init__(
        self, shape: Shape, make: Initializer, fans: Fans = (1, 1), dtype: DType | None = None
    ) -> None:
        self.shape, self.make, self.fans, self.dtype = shape, make, fans, dtype

    def __repr__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'one number'}, not drawn yet"


@dataclass
class Pass:
    """One call of a model, which all layers within it are told of."""

    train: bool = False
    key: Any = None
    count: Iterator[int] = field(default_factory=itertools.count)  # of draws
    updated: dict[int, tuple[Layer, dict[str, Any]]] | None = None  # by `id`
    trace: Trace | None = None  # in which it began
    home: Trace | None = None  # in which statistics are wanted
    watch: Callable[[Layer, bool, Any], None] | None = None  # (layer, whether it ends, its result)

    def reaches(self) -> bool:
        """Whether what is computed now is a part of it: a function compiled within it is not."""
        trace = array.current_thread.trace
        while trace is not self.trace:
            if trace is None or not trace.inner:
                return False
            trace = trace.outer
        return True


_running: ContextVar[Pass | None] = ContextVar("pass", default=None)


def _current() -> Pass | None:
    found = _running.get()
    if found is not None and not found.reaches():
        got = "a call from within another model's"
        needed = "to know whether this is training"
        do = "give train= to the layer there"
        raise misfit(ArgumentError, "a layer in a compiled function", got=got, needed=needed, do=do)
    return found


@dataclass_transform(eq_default=False, kw_only_default=False)
class Layer(Recorded):
    """A part of a network, or a whole one: a pytree whose arrays are its weights.

    Subclasses have a `forward`, and either attributes that an `__init__` sets, once each, or declared
    ones, for which one is made as for dataclasses. `layer(x)` calls `forward`; `train=` and `key=` go to
    all layers that it calls.

    >>> class Net(ost.nn.Layer):
    ...     first: ost.nn.Linear
    ...     second: ost.nn.Linear
    ...
    ...     def forward(self, x):
    ...         return self.second(ost.nn.relu(self.first(x)))
    >>> net = Net(ost.nn.Linear(4, 8), ost.nn.Linear(8, 2)).init(seed=0)
    >>> net(ost.ones((3, 4))).shape
    (3, 2)
    """

    statistics: ClassVar[tuple[str, ...]] = ()  # attributes that learn of data, not of gradients
    unnamed: ClassVar[tuple[str, ...]] = ()  # attributes that names of weights leave out
    forward: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, *, init: bool = True, **given: Any) -> None:
        """init: False tells type checkers that a subclass inherits its `__init__`."""
        super().__init_subclass__(**given)
        if "__init__" not in vars(cls):
            made: Any = dataclass(eq=False, repr=False)(type(cls.__name__, (), _declared(cls)))
            if fields(made):
                cls.__init__ = made.__init__  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            got = "a second assignment"
            needed = "one: layers do not change"
            do = f"make another one, with layer.replace({name}=...)"
            raise misfit(
                AssignmentError, f"{type(self).__name__}.{name}", got=got, needed=needed, do=do
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise misfit(AssignmentError, f"del of .{name}", needed="layers do not change")

    def __call__(
        self, *args: Any, train: bool | None = None, key: Any = None, **kwargs: Any
    ) -> Any:
        outer = _running.get()
        if outer is None:
            _check_drawn(self)
        elif train is None or outer.reaches():
            outer = _current()
        else:  # a compiled function's own pass
            outer = None
        if outer is None or train is not None or key is not None:
            outer = _within(outer, train, key)
        return _run(outer, self, args, kwargs)

    def apply(
        self, *args: Any, train: bool = True, key: Any = None, **kwargs: Any
    ) -> tuple[Any, Self]:
        """The result of a call, and the layer with the statistics of which its layers learnt. key: a
        whole number, or an array of one, for what is drawn: the same draws for the same key; else
        each call draws anew.

        >>> model = ost.nn.BatchNorm(2).init()
        >>> y, model = model.apply(ost.ones((4, 2, 5)))
        >>> model.running_mean
        Array([0.1, 0.1], dtype=float32)
        """
        _check_drawn(self)
        trace = array.current_thread.trace
        made = Pass(train, key, updated={}, trace=trace, home=trace)
        y = _run(made, self, args, kwargs)
        return y, _replaced(self, made.updated or {})

    def init(self, seed: int = 0, *, dtype: DTypeLike = "float32") -> Self:
        """The layer with its first weights, as `ost.nn.init` draws them.

        >>> ost.nn.Linear(2, 3).init(seed=1).weight.shape
        (3, 2)
        """
        return init(self, seed, dtype=dtype)

    def replace(self, **changes: Any) -> Self:
        """The layer with other attributes.

        >>> ost.nn.Dropout(0.5).replace(rate=0.1).rate
        0.1
        """
        own = vars(self)
        if lost := changes.keys() - own.keys():
            got, needed = ", ".join(sorted(lost)), f"some of {', '.join(own)}"
            raise misfit(ArgumentError, f"{type(self).__name__}.replace", got=got, needed=needed)
        made = object.__new__(type(self))
        vars(made).update({**own, **changes})
        return made

    @property
    def training(self) -> bool:
        """Whether this call is one of training."""
        now = _current()
        return now is not None and now.train

    def next_seed(self) -> Any:
        """A seed for what this layer draws in this call; None if no key was given."""
        now = _current()
        return None if now is None or now.key is None else fold(now.key, next(now.count))

    def update(self, **statistics: Callable[[Any], Any]) -> None:
        """Say what statistics become in this call: functions of what they are."""
        now = _current()
        if now is None or now.updated is None:
            got = "a call, which has no place for new statistics"
            needed = "model.apply"
            do = "y, model = model.apply(x, train=True)"
            raise misfit(
                ArgumentError, f"{type(self).__name__} in training", got=got, needed=needed, do=do
            )
        if array.current_thread.trace is not now.home:
            raise misfit(
                ArgumentError,
                f"{type(self).__name__} in training",
                got="a call within a loop, a checkpoint or the like, which statistics cannot leave",
                needed="that these are results of it",
                do="call layer.apply there, return the new layer, and say so: "
                "self.update(layer=lambda old: new)",
            )
        known = now.updated.setdefault(id(self), (self, {}))[1]
        for name, change in statistics.items():
            known[name] = change(known.get(name, getattr(self, name)))

    def __repr__(self) -> str:
        inner = [f"{name}={_told(value)}" for name, value in vars(self).items()]
        line = f"{type(self).__name__}({', '.join(inner)})"
        if len(line) <= 100 and "\n" not in line:
            return line
        lines = "".join(f"  {x},\n".replace("\n", "\n  ")[:-2] for x in inner)
        return f"{type(self).__name__}(\n{lines})"


def _declared(cls: type) -> dict[str, Any]:
    """Annotations of a class and of those above it, with defaults, as a class of its own has them."""
    found: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for kind in reversed(cls.__mro__):
        if issubclass(kind, Layer) and kind is not Layer:
            own = _annotations(kind)
            found.update({n: a for n, a in own.items() if "ClassVar" not in str(a)})
            values.update({n: vars(kind)[n] for n in own if n in vars(kind)})
    return {"__annotations__": found, **{n: v for n, v in values.items() if n in found}}


def _annotations(kind: type) -> dict[str, Any]:
    """A class's own, of which some may name what is not there yet."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(kind)


def _told(value: Any) -> str:
    if isinstance(value, Array):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, (tuple, list)) and any(isinstance(v, Layer) for v in value):
        inner = "".join(f"  {_told(v)},\n".replace("\n", "\n  ")[:-2] for v in value)
        return f"(\n{inner})"
    return getattr(value, "__name__", None) or repr(value)


def _within(outer: Pass | None, train: bool | None, key: Any) -> Pass:
    """A call within another one, or the first."""
    made = Pass(bool(train), key, trace=array.current_thread.trace)
    if outer is not None:
        made.updated, made.home, made.watch = outer.updated, outer.home, outer.watch
        made.train = outer.train if train is None else bool(train)
        if key is None:
            made.key, made.count = outer.key, outer.count
    return made


def _run(now: Pass, layer: Layer, args: Any, kwargs: dict[str, Any]) -> Any:
    token = _running.set(now)
    try:
        if now.watch is not None:
            now.watch(layer, False, args)
        y = type(layer).forward(layer, *args, **kwargs)
        if now.watch is not None:
            now.watch(layer, True, y)
        return y
    finally:
        _running.reset(token)


def _check_drawn(layer: Layer) -> None:
    leaves, structure = flatten(layer)
    for x, name in zip(leaves, paths(structure, "model"), strict=True):
        if isinstance(x, Initial):
            got = f"{name} of {x!r}"
            do = "draw them, with model = ost.nn.init(model, seed=0), or load them"
            raise misfit(
                ArgumentError, f"call of {type(layer).__name__}", got=got, needed="weights", do=do
            )


def _replaced(x: Any, updated: dict[int, tuple[Layer, dict[str, Any]]]) -> Any:
    """A tree of layers with other statistics; itself where there are none."""
    if not updated:
        return x
    if isinstance(x, Recorded):
        own = vars(x)
        new = {name: _replaced(v, updated) for name, v in own.items()}
        new.update(updated[id(x)][1] if id(x) in updated else {})
        if all(a is b for a, b in zip(own.values(), new.values(), strict=True)):
            return x
        made = object.__new__(type(x))
        vars(made).update(new)
        return made
    if isinstance(x, dict):
        return type(x)({k: _replaced(v, updated) for k, v in x.items()})
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[_replaced(v, updated) for v in x])
    return type(x)([_replaced(v, updated) for v in x]) if isinstance(x, (list, tuple)) else x


def init(model: T, seed: int = 0, *, dtype: DTypeLike = "float32") -> T:
    """The model with first weights, of a seed, a layer's place in the model and nothing else: the same for
    any number of workers, whatever the rest of the model is. Weights that there are stay.

    >>> model = ost.nn.init(ost.nn.Sequential(ost.nn.Linear(2, 3), ost.nn.relu), seed=7)
    >>> model(ost.ones((1, 2))).shape
    (1, 3)
    """
    if type(seed) is not int:
        raise misfit(ArgumentError, "init", got=f"seed={seed!r:.40}", needed="a whole number")
    leaves, structure = flatten(model)
    kind = as_dtype(dtype)

    def drawn(x: Any, name: str) -> Any:
        if not isinstance(x, Initial):
            return x
        own = mix(seed & (2**64 - 1), zlib.crc32(name.encode()))
        return x.make(x.shape, x.fans, x.dtype or kind, own)

    made = [drawn(x, name) for x, name in zip(leaves, paths(structure), strict=True)]
    return cast(T, unflatten(structure, made))


@lru_cache(256)
def _learns(structure: Structure) -> tuple[bool, ...]:
    """For each leaf whether gradients are for it, as far as its layer says."""
    if structure.kind is LEAF:
        return (True,)
    kind = structure.kind
    kept = kind.statistics if isinstance(kind, type) and issubclass(kind, Layer) else ()
    names = structure.extra if kept else itertools.repeat("")
    found: list[bool] = []
    for name, child in zip(names, structure.children, strict=False):
        found += [False] * child.leaves if name in kept else _learns(child)
    return tuple(found)


def partition(model: T, where: Callable[[str], bool] | None = None) -> tuple[T, T]:
    """The model's parameters, and the rest: two models, each with None where the other one has arrays.
    Statistics and whole numbers are no parameters. where: of a parameter's name, such as
    "layers[0].weight", whether it is to be one here: others are frozen.

    >>> parameters, rest = ost.nn.partition(ost.nn.BatchNorm(2).init())
    >>> parameters.weight, parameters.running_mean
    (Array([1., 1.], dtype=float32), None)
    >>> rest.weight, rest.running_mean
    (None, Array([0., 0.], dtype=float32))
    """
    leaves, structure = flatten(model)
    names = paths(structure)
    learns = [
        own and is_inexact(_dtype(x)) and (where is None or where(name.lstrip(".")))
        for own, x, name in zip(_learns(structure), leaves, names, strict=True)
    ]
    pairs = list(zip(leaves, learns, strict=True))
    made = (
        unflatten(structure, [x if is_one == wanted else None for x, is_one in pairs])
        for wanted in (True, False)
    )
    return cast("tuple[T, T]", tuple(made))


def _dtype(x: Any) -> DType:
    dtype = getattr(x, "dtype", None)
    return as_dtype("float32" if dtype is None else dtype)


def parameters(model: T, where: Callable[[str], bool] | None = None) -> T:
    """The model with None in place of all that is no parameter: what gradients and optimizers are for.

        def loss(parameters):
            y, new = ost.nn.combine(parameters, model).apply(x)
            return ost.nn.cross_entropy(y, labels), new

        (value, model), slopes = ost.value_and_grad(loss, has_aux=True)(ost.nn.parameters(model))

    >>> ost.nn.parameters(ost.nn.BatchNorm(2).init()).running_var is None
    True
    """
    return partition(model, where)[0]


def combine(first: T, second: T, /) -> T:
    """One model of two: what is None in the first is the second's.

    >>> parameters, rest = ost.nn.partition(ost.nn.BatchNorm(2).init())
    >>> ost.nn.combine(parameters, rest).running_var
    Array([1., 1.], dtype=float32)
    """
    (ours, a), (theirs, b) = flatten(first), flatten(second)
    found: list[Any] = []
    structure = _merged(a, b, iter(ours), iter(theirs), found)
    return cast(T, unflatten(structure, found))


def _merged(
    a: Structure, b: Structure, ours: Iterator[Any], theirs: Iterator[Any], found: list[Any]
) -> Structure:
    if a.kind is type(None):
        found += itertools.islice(theirs, b.leaves)
        return b
    if b.kind is type(None) or a.kind is LEAF:
        found += itertools.islice(ours, a.leaves)
        next(itertools.islice(theirs, b.leaves, b.leaves), None)
        return a
    if (a.kind, a.extra, len(a.children)) != (b.kind, b.extra, len(b.children)):
        got = f"{a!r:.80} and {b!r:.80}"
        raise misfit(ArgumentError, "combine", got=got, needed="parts of one model")
    pairs = zip(a.children, b.children, strict=True)
    children = [_merged(x, y, ours, theirs, found) for x, y in pairs]
    return Structure(a.kind, a.extra, tuple(children), a.beside)
