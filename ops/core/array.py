"""Array: what a user holds. A value that workers keep, or a pending Term: the symbolic graph as it
grows.

    Array ──► Operand          materialised: a handle of an engine, or host memory not yet placed
      │
      └─────► Term ──► Term    pending: op, inputs, parameters
                 └──► Operand / placeholder

Array and Term are two objects so that a Term knows which of its results somebody still holds: when
a graph runs, those results are kept, and a loop in plain Python never builds up history. An Array
cannot compute. Reading a value goes through `reader`, which the front door installs."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import numpy as np

from ostinato.errors import (
    ArgumentError,
    AssignmentError,
    DonatedError,
    DTypeError,
    OstinatoError,
    ShapeError,
)

from .array_methods import WEAK, ArrayMethods, Operandish, Readable, call, functions
from .dlpack import lent
from .layout import Layout
from .locks import make_lock
from .operand import File, Host, Operand, Scalar, Split, Wish
from .registry import Op
from .spec import DType, Shape, Spec, bool_, complex128, float64, int64
from .spelling import attribute_hint
from .tracebacks import shorten
from .user_line import misfit
from .views import takes_view, tell

SHOWN = 200  # elements that are shown; of more, the first and last along each axis
changing = make_lock()  # held while an Array gets, or loses, its operand
LATE_DEPTH = 32  # operations of what is made later, at the most, about
MOST_WAITING = 4096  # Arrays of which some may not wait any more
_serial = itertools.count(1)


class _Current(threading.local):
    """What the functions that this thread runs are traced for."""

    trace: Trace | None = None

    def __init__(self) -> None:
        self.waiting: list[weakref.ref[Array]] = []  # that became pending, some of them long ago
        self.most = MOST_WAITING  # of which it is looked which still do

    place: list[Any] | None = None  # at which what was waiting ran, since it was much


current_thread = _Current()
_traces = 0  # that began


class Trace:
    """One tracing in progress; its placeholders are the inputs of the graph that it will become. Within
    it (`with trace:`) only Arrays made since it began are assigned to."""

    __slots__ = (
        "__weakref__",
        "acts",
        "began",
        "made",
        "name",
        "outer",
        "refused",
        "serial",
        "within",
    )
    inner = True  # what becomes of its Terms is differentiated after it has ended

    def __init__(self, name: str) -> None:
        global _traces
        self.name = name
        self.made: list[weakref.ref[Array]] = []  # Arrays without values: none may outlive it
        self.within: list[Trace] = []  # others that have ended
        self.refused: list[BaseException] = []  # what was said when values were asked for
        self.serial = next(_serial)  # Terms with lower ones were there before
        self.outer: Trace | None = None
        self.acts: list[Array] = []  # what is to happen, whether or not anybody reads it
        with changing:
            _traces += 1
            self.began = _traces

    def __enter__(self) -> Self:
        self.outer = current_thread.trace
        if self.outer is not None:
            self.outer.begin_inner(self)
        current_thread.trace = self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        current_thread.trace = self.outer
        if kind is not None:
            self.acts.clear()
        if self.outer is not None and kind is None:
            self.outer.end_inner(self)

    def begin_inner(self, inner: Trace) -> None:
        """A trace within this one begins."""
        if self.outer is not None:
            self.outer.begin_inner(inner)

    def end_inner(self, inner: Trace) -> None:
        """A trace within this one has ended well."""
        if self.outer is not None:
            self.outer.end_inner(inner)

    def lends(self, x: Array) -> bool:
        """Whether an Array that was there before it may be assigned to, since it gets its value back."""
        return False


class Watch(Trace):
    """A gradient in progress: results that depend on its variables keep their history, even when
    they are read."""

    __slots__ = ("active", "read")
    inner = False

    def __init__(self) -> None:
        super().__init__("a gradient")
        self.active = True
        self.read: list[weakref.ref[Array]] = []

    def end(self) -> None:
        """Let go of the history that was kept."""
        self.active = False
        for ref in self.read:
            x = ref()
            if x is not None and x._operand is not None:
                x._term = None


class Term:
    """One node of the graph as it grows, or a leaf of it."""

    __slots__ = (
        "depth",
        "holders",
        "inputs",
        "line",
        "number",
        "op",
        "operands",
        "params",
        "rule",
        "serial",
        "specs",
        "traces",
    )

    def __init__(
        self,
        op: Op | None,
        inputs: tuple[tuple[Term, int], ...],
        params: tuple[tuple[str, Any], ...],
        specs: tuple[Spec, ...],
        line: str = "",
        traces: frozenset[Trace] = frozenset(),
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.specs = specs
        self.line = line
        self.traces = traces
        self.serial = next(_serial)
        self.depth: int = 1 + max([t.depth for t, _ in inputs]) if inputs else 0
        self.number = -1  # of a placeholder among its trace's inputs
        # what it came to, once it ran; of several results there is a list at once, since threads may
        # settle them at the same time
        self.operands: list[Operand | None] | None = (
            None if len(specs) == 1 else [None] * len(specs)
        )
        self.holders: list[weakref.ref[Array] | None] = []
        self.rule: Callable[..., Any] | None = None  # a gradient that stands in for the op's own

    @property
    def is_traced(self) -> bool:
        """Whether it depends on placeholders, so that it has no value yet."""
        return any(not isinstance(t, Watch) for t in self.traces)

    @property
    def is_open(self) -> bool:
        """Whether it belongs to a tracing or a gradient that is still in progress."""
        return any(not isinstance(t, Watch) or t.active for t in self.traces)

    def settle(self, k: int, operand: Operand) -> None:
        """Output k has become a value; its Array lets go of the history, unless a gradient still
        needs it."""
        if self.operands is None:
            self.operands = [operand]
        elif (known := self.operands[k]) is None:
            self.operands[k] = operand
        else:  # another thread was faster
            operand = known
        x = self.held(k)
        if x is not None:
            self.tell(x, operand)

    def tell(self, x: Array, operand: Operand) -> None:
        """Give an Array of this Term its value."""
        with changing:
            if x._term is not self:
                return
            x.spec, x._operand = operand.spec, operand  # in this order: who sees it sees its spec
        watches = [t for t in self.traces if isinstance(t, Watch) and t.active]
        for watch in watches:
            watch.read.append(weakref.ref(x))
        if not watches:
            x._term = None

    def held(self, k: int) -> Array | None:
        """The Array that somebody still holds for output k."""
        ref = self.holders[k] if k < len(self.holders) else None
        return ref() if ref is not None else None


class Recipe(Protocol):
    """What makes an Array of others. Equal ones make the same."""

    known: dict[Any, Spec]  # what it makes, by the specs of what it is given

    @property
    def names(self) -> Sequence[str]: ...  # of what it is given, behind the name of what it makes
    def __call__(self, *given: Array) -> Array: ...
    def __hash__(self) -> int: ...


class Late(Term):
    """A pending result that is best made by who takes it: a compiled function that is given it makes it
    within its own plan. What node it is is found out when somebody asks."""

    __slots__ = ("given", "recipe")

    def __init__(self, spec: Spec, recipe: Recipe, given: tuple[Array, ...]) -> None:
        super().__init__(None, (), (), (spec,))
        del self.op, self.inputs, self.params  # until `__getattr__` is asked for them
        self.depth = LATE_DEPTH
        self.recipe, self.given = recipe, given

    def __getattr__(self, name: str) -> Any:
        if name not in ("op", "inputs", "params"):
            raise AttributeError(name)
        made = self.recipe(*self.given)._term
        assert made is not None
        self.line, self.op, self.inputs, self.params = made.line, made.op, made.inputs, made.params
        return getattr(self, name)


class Reader(Protocol):
    """How values are read; installed by the front door."""

    @property
    def device(self) -> str: ...  # where the session's workers keep arrays
    def value(self, x: Array) -> np.ndarray[Any, Any]: ...
    def on_gpu(self, x: Array) -> Any: ...  # its values there in one piece, or None
    def adopt(self, values: Any, split: Split, copy: bool) -> Operand | None: ...
    def settle(self, xs: Sequence[Array]) -> None: ...
    def row(self, x: Array, k: int) -> Operand | None: ...  # a copy, if it is at hand and little
    def place(self, x: Array) -> Spec: ...
    def known(self, x: Array, what: str, shape: bool = False) -> np.ndarray[Any, Any]: ...
    def is_given(self, x: Array) -> bool: ...  # made of numbers that a trace can be given
    def to_dask(self, x: Array) -> Any: ...
    def text(self, x: Array, edge: int, most: int, **how: Any) -> str | None: ...
    def planned(self, x: Array) -> Spec: ...
    def html(self, x: Array) -> str: ...


reader: Reader


def install(made: Reader) -> None:
    """Tell Arrays how to read their values."""
    global reader
    reader = made


Operator = Callable[["Array", "Operandish"], "Array"]


def _operator(name: str) -> Operator:
    return lambda self, other: _binary(name, self, other)


def _reflected(name: str) -> Operator:
    return lambda self, other: _binary(name, other, self)


def _in_place(name: str) -> Operator:
    """One that assigns."""
    return lambda self, other: self._combine(name, other)


class Array(ArrayMethods["Array"]):
    """An n-dimensional array, lazy, and laid out over the workers of a session. Values never change:
    an assignment to an Array makes it stand for another value.

    >>> x = ost.arange(6.0).reshape(2, 3)
    >>> x.shape, x.dtype, x.split
    ((2, 3), dtype('float64'), None)
    """

    __slots__ = ("__weakref__", "_began", "_k", "_of", "_operand", "_term", "spec", "weak")
    _operand: Operand | None
    _term: Term | None
    _k: int
    _began: int  # how many traces had begun when it was made
    _of: weakref.ref[Array] | None  # of which NumPy would have made it a view
    spec: Spec
    weak: type | None

    __array_priority__ = 1000

    def __init__(self) -> None:
        do = "use ost.asarray(values), ost.zeros(shape), ..."
        raise misfit(ArgumentError, "Array()", got="a direct call", do=do)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"an array has no attribute {name!r}{attribute_hint(name)}"
            raise AttributeError(message, name=name, obj=self)

    # -- what is known without computing ---------------------------------------------------
    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        return self.spec.size

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def itemsize(self) -> int:
        return self.spec.dtype.itemsize

    @property
    def device(self) -> str:
        return reader.device

    def to_device(self, device: str, /, *, stream: object = None) -> Array:
        """This array; all arrays of a session live on its workers."""
        if device != reader.device:
            needed, do = repr(reader.device), "arrays live where their session's workers are"
            raise misfit(ArgumentError, "to_device", got=repr(device), needed=needed, do=do)
        return self

    @property
    def layout(self) -> Layout:
        """How the array lies on the workers (computes it if it is pending)."""
        layout = reader.place(self).layout
        assert layout is not None
        return layout

    @property
    def split(self) -> Split:
        """The dimension that each mesh axis splits, in the form that `split=` takes."""
        splits = cast("tuple[int | None, ...]", self.layout.splits)
        return splits[0] if len(set(splits)) == 1 else splits

    def __len__(self) -> int:
        if not self.shape:
            got = "a 0-dimensional array"
            raise misfit(ArgumentError, "len()", got=got, needed="at least one axis")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[k] for k in range(len(self)))

    def __contains__(self, value: Operandish) -> bool:
        return bool((self == value).any())

    def __hash__(self) -> int:
        do = "use a tuple of numbers, or id(x), as the key"
        raise misfit(ArgumentError, "hash()", got="an array", do=do)

    # -- reading ---------------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = reader.value(self)
        if dtype is not None and value.dtype != dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a read-only NumPy array (a view of them where they lie in this process)."""
        return reader.value(self)

    def to_dask(self) -> Any:
        """A Dask array of the same values; on a Dask cluster its chunks are the workers' parts."""
        return reader.to_dask(self)

    def __copy__(self) -> Array:
        """Share the value, if it is there: values do not change, and shared ones are not given away."""
        if self._operand is None or (self._term is not None and self._term.is_open):
            return call("copy", self)
        self._operand.shared = True
        return from_operand(self._operand, self.weak)

    def __deepcopy__(self, memo: object) -> Array:
        return self.__copy__()

    def __reduce__(self) -> Any:
        value = reader.known(self, "pickle")
        lies: Any = self._operand.split if isinstance(self._operand, (Host, File)) else None
        if self.spec.layout is not None:
            lies = tuple([s if isinstance(s, int) else None for s in self.spec.layout.splits])
        return restored, (value, lies, self.weak and self.weak.__name__)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The values for another library: the same memory, marked as read-only, if it knows that mark
        (DLPack 1.0), else a copy; with copy=False the memory without it, which nobody may write to. On a
        GPU `stream`, which is the taker's, waits for what makes them."""
        host = dl_device is not None and dl_device[0] == 1
        value = None if host else reader.on_gpu(self)
        on_host = value is None
        value = reader.value(self) if on_host else value
        return lent(
            value, on_host, copy, stream=stream, max_version=max_version, dl_device=dl_device
        )

    def __jax_array__(self) -> Any:
        """For functions of JAX, which take it as one of theirs."""
        return import_module("jax.numpy").asarray(reader.value(self))

    def __dlpack_device__(self) -> tuple[int, int]:
        value = reader.on_gpu(self)
        return (1, 0) if value is None else value.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The values on a GPU, which are only to be read (version 3, with the stream that makes them)."""
        value = reader.on_gpu(self)
        if value is None:
            raise AttributeError("__cuda_array_interface__")
        said = dict(value.__cuda_array_interface__)
        return said | {"data": (said["data"][0], True)}

    def _scalar(self, what: str, kind: type[OstinatoError] = ArgumentError) -> Any:
        if self.size != 1:
            needed, do = "one element", "reduce it first, e.g. x.all(), x.any() or x.sum()"
            raise misfit(kind, what, got=f"an array of shape {self.shape}", needed=needed, do=do)
        return reader.known(self, what).reshape(())[()]

    def _real(self, what: str) -> Any:
        if self.dtype.kind == "c":
            got = self.dtype.name
            raise misfit(DTypeError, what, got=got, needed="a real dtype", do="take x.real first")
        return self._scalar(what)

    def item(self, *place: Any) -> Scalar:
        """The one element as a Python number, or that at a place, counted in one row or along each axis."""
        if place:
            key = place[0] if len(place) == 1 else place
            return (self if isinstance(key, tuple) else self.ravel())[key].item()
        return cast(Scalar, self._scalar("item()", ShapeError).item())

    def tobytes(self) -> bytes:
        """The bytes of the values, the last index running fastest."""
        return reader.value(self).tobytes()

    def tolist(self) -> Any:
        """The values as Python's numbers, in nested lists."""
        return reader.value(self).tolist()

    def view(self, dtype: Any) -> np.ndarray[Any, Any]:
        """The bytes of the values, read as another dtype: a NumPy array, as writers of files want."""
        return reader.value(self).view(dtype)

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()", ShapeError))

    def __int__(self) -> int:
        return int(self._real("int()"))

    def __float__(self) -> float:
        return float(self._real("float()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise misfit(DTypeError, "index", got=f"{self.dtype.name}", needed="an integer dtype")
        return int(self._scalar("index"))

    @property
    def _is_traced(self) -> bool:
        """Whether it has no value yet, since a function is being traced."""
        return self._operand is None and self._term is not None and self._term.is_traced

    def __repr__(self) -> str:
        if self._is_traced:
            return f"Array({self.spec.bare}, traced)"
        if isinstance(self._operand, File) or (self.spec.layout and self.spec.layout.stored):
            return f"Array({self.spec.bare}, in a file)"
        text = reader.text(self, 3, SHOWN, prefix="Array(")
        layout = reader.planned(self).layout
        lies = f", {layout}" if layout is not None and layout.workers > 1 else ""
        if text is None:
            return f"Array({self.spec.bare}{lies}, pending)"
        shape = f"shape={self.shape}, " if self.size > SHOWN else ""
        return f"Array({text}, {shape}dtype={self.dtype.name}{lies})"

    def __str__(self) -> str:
        """The number of an array without axes, as NumPy's; else what `repr` gives."""
        if self.spec.shape or self._is_traced or isinstance(self._operand, File):
            return repr(self)
        return str(reader.value(self)[()])

    def _repr_html_(self) -> str:
        return reader.html(self)

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form and self.size == 1 else str(self)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return functions["__array_function__"](function, types, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return functions["__array_ufunc__"](ufunc, method, inputs, options)

    # -- the standard's namespace ----------------------------------------------------------
    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        import ostinato

        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            got = repr(api_version)
            raise misfit(ArgumentError, "__array_namespace__", got=got, needed="'2024.12'")
        return ostinato

    # -- operators -------------------------------------------------------------------------
    __add__ = _operator("add")
    __radd__ = _reflected("add")
    __sub__ = _operator("subtract")
    __rsub__ = _reflected("subtract")
    __mul__ = _operator("multiply")
    __rmul__ = _reflected("multiply")
    __truediv__ = _operator("divide")
    __rtruediv__ = _reflected("divide")
    __floordiv__ = _operator("floor_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __mod__ = _operator("remainder")
    __rmod__ = _reflected("remainder")

    def __divmod__(self, other: Operandish) -> tuple[Array, Array]:
        return _quotient_and_rest(self, other)

    def __rdivmod__(self, other: Operandish) -> tuple[Array, Array]:
        return _quotient_and_rest(other, self)

    __pow__ = _operator("pow")
    __rpow__ = _reflected("pow")
    __matmul__ = _operator("matmul")
    __rmatmul__ = _reflected("matmul")
    __and__ = _operator("bitwise_and")
    __rand__ = _reflected("bitwise_and")
    __or__ = _operator("bitwise_or")
    __ror__ = _reflected("bitwise_or")
    __xor__ = _operator("bitwise_xor")
    __rxor__ = _reflected("bitwise_xor")
    __lshift__ = _operator("bitwise_left_shift")
    __rlshift__ = _reflected("bitwise_left_shift")
    __rshift__ = _operator("bitwise_right_shift")
    __rrshift__ = _reflected("bitwise_right_shift")
    __eq__ = _operator("equal")  # type: ignore[assignment]
    __ne__ = _operator("not_equal")  # type: ignore[assignment]
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")

    def dot(self, other: Operandish) -> Array:
        return _binary("matmul", self, other)

    def __neg__(self) -> Array:
        return call("negative", self)

    def __pos__(self) -> Array:
        return call("positive", self)

    def __abs__(self) -> Array:
        return call("abs", self)

    def __invert__(self) -> Array:
        return call("bitwise_invert", self)

    def __round__(self, digits: int = 0) -> Array:
        return call("round", self, digits)

    # -- indexing --------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> Array:
        made = self._row(key) if key.__class__ is int else None
        if made is None:
            made = call("getitem", self, key)
        if made.__class__ is not Array:
            return made
        term, of = made._term, self._of
        if (
            current_thread.trace is None
            and not (term is not None and term.traces)
            and takes_view(key)
        ):
            made._of = weakref.ref(self) if of is None or of() is None else of
        return made

    def _row(self, k: int) -> Array | None:
        """x[k] of a value that is at hand, if that is little: at once, so that the turns of a loop over rows
        are one computation."""
        term = self._term
        if self._operand is None or current_thread.trace is not None:
            return None
        if term is not None and (term.traces or term.op is not None):
            return None
        row = reader.row(self, k)
        return from_operand(row) if row is not None else None

    def __setitem__(self, key: Any, values: Operandish) -> None:
        try:
            self._check_own("x[...] = values")
            self._tell_view("x[...] = values", sys._getframe(1), False)
            self._become(functions["assigned"](self, key, values))
        except Exception as error:
            shorten(error)
            raise

    def fill(self, value: Operandish) -> None:
        self[...] = value

    def _check_own(self, what: str) -> None:
        """Refuse to assign to what was there before a function that is being traced: it would be
        assigned to once, and not whenever the function is called."""
        if self.weak is not None:
            do = "make one of it first, with ost.asarray"
            raise misfit(AssignmentError, what, got="a number", needed="an array", do=do)
        trace = current_thread.trace
        if trace is not None and self._began < trace.began and not trace.lends(self):
            got = f"{self.spec.bare} from around {trace.name}, which is being traced"
            needed = "an array that it was given, or made"
            do = "pass it as an argument, or assign to a copy, x.copy()"
            raise misfit(AssignmentError, what, got=got, needed=needed, do=do)

    def _tell_view(self, what: str, frame: FrameType, to_name: bool) -> None:
        """Warn who assigns to what NumPy would have made a view of an array that is still there."""
        base = self._of() if self._of is not None else None
        if base is not None:
            tell(what, self.spec, base.spec, frame, to_name)

    def _become(self, made: Array) -> None:
        """Stand for the value of another Array, which nobody else holds."""
        with changing:
            term = self._term
            if term is not None and term.held(self._k) is self:
                term.holders[self._k] = None
            self._operand, self._term, self._k, self._of = None, made._term, made._k, None
            self.spec, self._operand = made.spec, made._operand
            if self._term is not None:
                hold(self._term, self._k, self)

    def _combine(self, name: str, other: Operandish) -> Array:
        """The operators that assign; numbers, and arrays without axes, are no places."""
        if self.weak is not None or not self.ndim:
            return NotImplemented
        try:
            made = _binary(name, self, other)
            if made is NotImplemented:
                return made
            self._check_own(f"{name} in place")
            if self._of is not None:
                self._tell_view(f"{name} in place", sys._getframe(2), True)
            self._become(functions["assigned_in_place"](self, made, f"{name} in place"))
        except Exception as error:
            shorten(error)
            raise
        return self

    __iadd__ = _in_place("add")
    __isub__ = _in_place("subtract")
    __imul__ = _in_place("multiply")
    __itruediv__ = _in_place("divide")
    __ifloordiv__ = _in_place("floor_divide")
    __imod__ = _in_place("remainder")
    __ipow__ = _in_place("pow")
    __imatmul__ = _in_place("matmul")
    __iand__ = _in_place("bitwise_and")
    __ior__ = _in_place("bitwise_or")
    __ixor__ = _in_place("bitwise_xor")
    __ilshift__ = _in_place("bitwise_left_shift")
    __irshift__ = _in_place("bitwise_right_shift")


def have_values(xs: Sequence[Array]) -> bool:
    """Whether these can be read, and nobody would miss it: neither a trace nor a gradient."""
    plain = not any(x._term is not None and x._term.traces for x in xs)
    return plain and current_thread.trace is None


def _binary(name: str, x: Any, y: Any) -> Array:
    """Apply a function for an operator: of Python numbers it makes a number again, and no array."""
    if not isinstance(x if y.__class__ is Array else y, _READABLE):
        return NotImplemented
    try:
        made = cast(Array, functions[name](x, y))
    except Exception as error:
        shorten(error)
        raise
    if weak_kind(x) is not None and weak_kind(y) is not None:
        made.weak = WEAK.get(made.dtype.kind)
    return made


def _quotient_and_rest(x: Any, y: Any) -> tuple[Array, Array]:
    quotient = _binary("floor_divide", x, y)
    return quotient if quotient is NotImplemented else (quotient, _binary("remainder", x, y))


_READABLE = (Array, bool, int, float, complex, np.ndarray, np.generic, list, tuple, Readable)


# -- making arrays -------------------------------------------------------------------------
_new = object.__new__


def from_operand(operand: Operand, weak: type | None = None) -> Array:
    """An Array of a value that exists."""
    x: Array = _new(Array)
    x.spec = operand.spec
    x._operand = operand
    x._term = None
    x._k = 0
    x._began = _traces
    x._of = None
    x.weak = weak
    return x


def another(x: Array) -> Array:
    """Make another Array of this value, which may be assigned to."""
    return x.__copy__()


def restored(value: np.ndarray[Any, Any], split: Any, weak: str | None) -> Array:
    """An Array from a pickle, which lies as it did if the session has such a mesh."""
    made = cast(Array, functions["asarray"](value))
    assert isinstance(made._operand, Host)
    made._operand.split = Wish(split) if isinstance(split, tuple) else split
    made.weak = None if weak is None else WEAK[weak[0]]
    return made


def from_term(term: Term, k: int = 0, weak: type | None = None) -> Array:
    """An Array of a result that is pending."""
    x: Array = _new(Array)
    x.spec = term.specs[k]
    x._operand = None
    x._term = term
    x._k = k
    x._began = _traces
    x._of = None
    x.weak = weak
    while len(term.holders) <= k:
        term.holders.append(None)
    hold(term, k, x)
    return x


def hold(term: Term, k: int, x: Array) -> None:
    """Tell a Term, and the traces that it belongs to, who has its output k."""
    ref = term.holders[k] = weakref.ref(x)
    if not term.traces and term.depth:
        waiting = current_thread.waiting
        waiting.append(ref)
        if len(waiting) > current_thread.most:
            pending()
    for trace in term.traces:
        trace.made.append(ref)


def pending() -> list[tuple[Term, int]]:
    """List what this thread's Arrays that somebody holds wait for, in the order in which they began to."""
    found: dict[tuple[Term, int], weakref.ref[Array]] = {}
    for ref in current_thread.waiting:
        x = ref()
        term = x._term if x is not None and x._operand is None else None
        if term is not None and x is not None:
            found.setdefault((term, x._k), ref)
    current_thread.waiting = [*found.values()]
    current_thread.most = max(MOST_WAITING, 2 * len(found))
    return [*found]


def placeholder(spec: Spec, number: int, trace: Trace, weak: type | None = None) -> Array:
    """An input of a graph that is being traced."""
    term = Term(None, (), (), (spec,), traces=frozenset((trace,)))
    term.number = number
    return from_term(term, 0, weak)


def term_of(x: Array) -> tuple[Term, int]:
    """The Term and output number of an Array; a materialised one becomes a leaf."""
    term = x._term
    if term is None:
        operand = x._operand
        if operand is None:
            got, do = (
                f"{x.spec.bare} whose memory was given to a compiled function",
                "use that function's result (or make the array again, if the function failed), or leave "
                "the argument out of donate=",
            )
            raise misfit(DonatedError, "use of a donated array", got=got, do=do)
        k = x._k  # which stays, since other threads may be about to read it
        term = Term(None, (), (), (x.spec,) * (k + 1))
        term.operands = [*[None] * k, operand]
        term.holders = [*[None] * k, weakref.ref(x)]
        with changing:
            if x._operand is operand:  # else it was given away, by who sees that we still have it
                x._term = term
        return term, k
    return term, x._k


def settled(x: Array) -> Operand:
    """The value of an Array that was computed. Its term has it too, where another thread made a second
    Array of the same result."""
    operand, term = x._operand, x._term
    if operand is None and term is not None and term.operands is not None:
        operand = term.operands[x._k]
    if operand is None:
        term_of(x)  # raises, if it was given away meanwhile
        raise AssertionError("an array that is pending")
    return operand


# -- operands of every kind ----------------------------------------------------------------
DEFAULTS: dict[type, DType] = {bool: bool_, int: int64, float: float64, complex: complex128}


def weak_kind(x: Any) -> type | None:
    """bool, int, float or complex for a Python number (or one lifted to an input), which does not
    promote arrays."""
    if isinstance(x, Array):
        return x.weak
    kind = type(x)
    return kind if kind in DEFAULTS else None
