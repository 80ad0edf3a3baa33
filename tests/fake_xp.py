"""An `xp` that is not NumPy: the namespace and the arrays of CuPy 14, in memory of the host.

Kernels are written for `xp`, which is NumPy on a CPU and CuPy on a GPU. Here is a third one, for
machines without a GPU. Its arrays are of a type of their own. They do not mix with NumPy's: whoever
hands one to the other's functions gets a TypeError, in both directions; only `from_host` and `to_host`
move data, and both are counted, as are the values that a kernel waits for (`counted`). What CuPy lacks
is refused by name (NotImplementedError), and so are arguments that its functions do not have.

Where CuPy does another thing than NumPy, so do these arrays:
    - indexing and `take` wrap around at the ends of an axis instead of failing
    - `a[places] = values` with a place that stands twice keeps any of the values: here it is an error,
      unless they are equal
    - functions of arrays give arrays, of no axes perhaps, and never NumPy's scalars
    - functions of elements have the loops that CuPy has (cupy_loops.py): the first that operands may be
      cast to gives the dtype, and none is an error; division by complex zeros and infinities, `log2` of complex
      numbers and `nextafter` of halves give what they give there
    - `matmul` takes `out` by its name only, and `min` takes it for a dtype
    - of ufuncs' methods there are add's and multiply's `reduce` and `accumulate`, and `at` where CUDA has
      atomic operations: for some functions, and some dtypes
    - `linalg` takes float32, float64 and their complex numbers; matrices without the factors that are asked for
      give NaN, and a word that nobody looks at but functions of `linalg._util`, unless told to raise

It says nothing of speed or rounding: all is computed by NumPy. Streams and graphs are fake_cuda.py's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from . import fake_cuda, fake_nccl
from .cuda_host import HostKernel
from .cupy_loops import LOOPS
from .fake_cuda import ask, counted, refuse_library, refuse_while_capturing

_DTYPES = {
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16),
    )
}
_SCALARS = (bool, int, float, complex, np.generic)


def from_host(x: Any) -> DeviceArray:
    """A copy of a NumPy array on the device."""
    fake_cuda.pin(x.nbytes)
    refuse_while_capturing("values of the host")
    counted.from_host += 1
    made = np.array(x, copy=True, order="K")
    fake_cuda.own(made)
    return _made(made)


def to_host(x: DeviceArray) -> Any:
    """A copy of an array of the device as NumPy's."""
    fake_cuda.get_current_stream().synchronize()
    fake_cuda.touch(fake_cuda.get_current_stream(), [_host(x)], ())
    counted.to_host += 1
    return _host(x).copy(order="K")


def _made(x: Any) -> Any:
    """What NumPy's function gave, as CuPy's would have."""
    if isinstance(x, tuple | list):
        return tuple(map(_made, x)) if isinstance(x, tuple) else list(map(_made, x))
    if not isinstance(x, np.ndarray | np.generic):
        return x
    if x.dtype not in _DTYPES:
        raise TypeError(f"the device has no arrays of dtype {x.dtype}")
    made = object.__new__(DeviceArray)
    object.__setattr__(made, "_memory", x if isinstance(x, np.ndarray) else np.array(x))
    return made


def _host(x: Any) -> Any:
    """What an argument is to NumPy. A NumPy array is none that a device can read."""
    if isinstance(x, DeviceArray):
        return x._memory
    if isinstance(x, np.ndarray):
        raise TypeError(
            f"a NumPy array {x.dtype}{list(x.shape)} was given to a function of the device: "
            "move it with from_host first"
        )
    if isinstance(x, tuple | list):
        return type(x)(map(_host, x))
    return x


def _refuse(what: str) -> NoReturn:
    raise TypeError(
        f"an array of the device was given to {what} of NumPy: use xp's, or move it with to_host first"
    )


def _wait() -> None:
    fake_cuda.get_current_stream().synchronize()
    counted.waits += 1


class Pointer:
    """Where an array lies: CuPy's `MemoryPointer`."""

    def __init__(self, memory: Any, first: int = 0) -> None:
        self.ptr = fake_cuda.address_of(memory) + first
        self.memory, self.first = memory, first

    def __add__(self, count: int) -> Pointer:
        return Pointer(self.memory, self.first + count)

    def copy_from_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """Some time later: what lies there stays as it is until then (`Stream.sent`)."""
        refuse_while_capturing("values of the host")
        on = stream or fake_cuda.get_current_stream()
        given = fake_cuda.pinned_at(mem, size)
        there = self.memory.reshape(-1).view(np.uint8)[self.first : self.first + size]
        fake_cuda.touch(on, (), [there])
        there[...] = given
        counted.from_host += 1
        counted.asked += 1
        on.sent.append((counted.asked, given, given.copy()))

    def copy_to_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """In order with what else the stream copies, which needs that memory as it is until then."""
        refuse_while_capturing("values for the host")
        on = stream or fake_cuda.get_current_stream()
        there = fake_cuda.pinned_at(mem, size)
        given = self.memory.reshape(-1).view(np.uint8)[self.first : self.first + size]
        fake_cuda.touch(on, [given], ())
        on.sent[:] = [sent for sent in on.sent if not np.shares_memory(sent[1], there)]
        there[...] = given
        counted.to_host += 1
        counted.asked += 1

    def copy_from_device_async(self, src: Pointer, size: int) -> None:
        there, given = (
            x.memory.reshape(-1).view(np.uint8)[x.first : x.first + size] for x in (self, src)
        )
        ask(lambda: np.copyto(there, given), [given], [there])


class _Held(np.ndarray):
    """Memory that a capsule keeps, and with it the array."""

    holder: Any


def _wrapped(memory: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key whose places wrap around, as soon as they are known."""
    wide = [k.ndim if isinstance(k, np.ndarray) and k.dtype == bool else 1 for k in place]
    used = sum(n for k, n in zip(place, wide, strict=True) if k is not None and k is not ...)
    axis, found = 0, []
    for k, n in zip(place, wide, strict=True):
        if isinstance(k, np.ndarray) and k.dtype != bool:
            k = k % max(memory.shape[axis], 1)
        found.append(k)
        axis += memory.ndim - used if k is ... else 0 if k is None else n
    return tuple(found)


class DeviceArray:
    """An array of the device."""

    __slots__ = ("__weakref__", "_memory")
    __hash__ = None  # type: ignore[assignment]
    _memory: Any

    def __init__(self) -> None:
        raise TypeError("arrays of the device are made by xp.empty and its like")

    # -- NumPy keeps out -----------------------------------------------------------------
    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("a function")

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        _refuse(getattr(function, "__name__", "a function"))

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **more: Any) -> Any:
        """A NumPy number on the left of an operator comes here, too, and is as good as any other."""
        numbers = sum(isinstance(x, np.generic) for x in given)
        if method == "__call__" and not more and numbers == 1 == len(given) - 1:
            return getattr(xp, function.__name__)(*given)
        _refuse(function.__name__)

    # -- from and to the host --------------------------------------------------------------
    def set(self, values: Any) -> None:
        """As CuPy: from an array that lies in order, of the same form."""
        if not isinstance(values, np.ndarray) or not values.flags.c_contiguous:
            raise TypeError("ndarray.set takes an array of the host that lies in order")
        if (values.shape, values.dtype) != (self.shape, self.dtype):
            raise ValueError(f"{values.dtype}{values.shape} for {self.dtype}{self.shape}")
        fake_cuda.pin(values.nbytes)
        refuse_while_capturing("values of the host")
        fake_cuda.touch(fake_cuda.get_current_stream(), (), [self._memory])
        counted.from_host += 1
        self._memory[...] = values

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> Any:
        counted.waits += 1
        if out is None:
            return to_host(self)
        if not (out.flags.c_contiguous and (out.shape, out.dtype) == (self.shape, self.dtype)):
            raise TypeError("ndarray.get writes to an array that lies in order, of the same form")
        out[...] = to_host(self)
        return out

    @property
    def data(self) -> Any:
        return Pointer(self._memory)

    # -- for other libraries -----------------------------------------------------------------
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The taker's stream waits for the current one; -1: it takes care of that itself, as MPI does, which
        has none."""
        assert stream != 0, "CUDA's stream 0 may be either default stream"
        if stream == -1:
            fake_cuda.host_takes(self._memory)
        else:
            fake_cuda.let_wait(1 if stream is None else stream)
        held = (self.copy() if copy else self)._memory.view(_Held)
        held.holder = self
        return np.ndarray.__dlpack__(held, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        said = self._memory.__array_interface__
        return {
            "shape": said["shape"],
            "typestr": said["typestr"],
            "strides": said["strides"],
            "data": (said["data"][0], False),
            "version": 3,
            "stream": fake_cuda.get_current_stream().ptr or 1,
        }

    # -- how it lies ---------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            found = getattr(self._memory, name)
            return _made(found) if isinstance(found, np.ndarray) else found
        if name in _METHODS:
            method = getattr(self._memory, name)
            return _checked(f"ndarray.{name}", method, _METHODS[name], owner=self)
        if hasattr(self._memory, name) and not name.startswith("__"):
            raise NotImplementedError(
                f"arrays of CuPy have no {name}, or kernels should not use it"
            )
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("real", "imag"):
            raise NotImplementedError(f"{name} of an array of the device is not to be set")
        memory, given = self._memory, _host(value)
        reads = [given] if isinstance(given, np.ndarray) else []
        ask(lambda: setattr(memory, name, given), reads, [memory])

    def __len__(self) -> int:
        return len(self._memory)

    def __iter__(self) -> NoReturn:
        raise TypeError("a loop over the elements of an array of the device")

    def __repr__(self) -> str:
        return f"DeviceArray({self._memory!r})"

    def take(self, indices: Any, axis: int | None = None, out: Any = None) -> Any:
        return xp.take(self, indices, axis, out)

    def nonzero(self) -> Any:
        return xp.nonzero(self)

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any:
        return xp.compress(condition, self, axis, out)

    # -- elements ------------------------------------------------------------------------
    def _place(self, key: Any) -> Any:
        """A key for NumPy, but for places, which wrap around (`_wrapped`); masks have to be looked at."""
        found = []
        for k in key if isinstance(key, tuple) else (key,):
            k = np.array(k, np.int64) if isinstance(k, list) else k if k is ... else _host(k)
            if isinstance(k, np.ndarray) and k.dtype == bool:
                _wait()
            found.append(k)
        return tuple(found)

    def __getitem__(self, key: Any) -> Any:
        place = self._place(key)
        if not any(k is ... for k in place):
            place = (*place, ...)  # one element is a view, too
        if not any(isinstance(k, np.ndarray) for k in place):
            return _made(self._memory[place])
        memory = self._memory  # a graph knows where an array lies, and keeps no array
        reads = [memory, *(k for k in place if isinstance(k, np.ndarray))]
        return _made(ask(lambda: memory[_wrapped(memory, place)], reads))

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, (DeviceArray, *_SCALARS)):
            _host(value)
            raise TypeError(f"a {type(value).__name__} cannot be written to an array of the device")
        place = self._place(key)
        places = [k for k in place if isinstance(k, np.ndarray) and k.dtype != bool]
        value, memory = _host(value), self._memory

        def put() -> None:
            given, at = np.array(value, memory.dtype), _wrapped(memory, place)
            memory[at] = given
            if places:
                there = memory[at]
                if there.tobytes() != np.broadcast_to(given, there.shape).tobytes():
                    raise ValueError("two values for one place: either may stay on a device")

        ask(put, [x for x in (value, *place) if isinstance(x, np.ndarray)], [memory])

    # -- values that the host waits for ----------------------------------------------------
    def __bool__(self) -> bool:
        _wait()
        return bool(self._memory)

    def __int__(self) -> int:
        _wait()
        return int(self._memory)

    def __float__(self) -> float:
        _wait()
        return float(self._memory)

    def __complex__(self) -> complex:
        _wait()
        return complex(self._memory)

    def __index__(self) -> int:
        _wait()
        return operator.index(self._memory)


def _char(letter: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if letter == "E" else letter)


_KINDS = {bool: "biufcV", int: "iufcV", float: "fcV", complex: "c"}


def _fits(x: Any, dtype: Any) -> bool:
    """A number of Python's is as narrow as what it meets."""
    return np.can_cast(x, dtype) if isinstance(x, np.dtype) else dtype.kind in _KINDS[x]


@functools.cache
def _loop(name: str, given: tuple[Any, ...], dtype: Any) -> tuple[list[Any], list[Any]] | None:
    """The first one that takes these dtypes and numbers of Python's, or makes that dtype: its dtypes."""
    for loop in LOOPS[name]:
        ins, made = ([_char(c) for c in side] for side in loop.split("->"))
        if made[0] == dtype if dtype is not None else all(map(_fits, given, ins)):
            return ins, made
    return None


def _by_loop(
    name: str,
    given: Sequence[Any],
    out: Any = None,
    dtype: Any = None,
    casting: Any = "same_kind",
    where: Any = True,
) -> Any:
    """What CuPy's function of elements computes, by its first loop that takes these."""
    plain, outs = getattr(np, name), out if isinstance(out, tuple) else (out,)
    if name not in LOOPS:  # a generalized one
        return plain(*given, out=out)
    if all(type(x) in _KINDS for x in given):
        given = [np.asarray(x) for x in given]
    among = tuple(x.dtype if isinstance(x, np.ndarray | np.generic) else type(x) for x in given)
    loop = _loop(name, among, None if dtype is None else np.dtype(dtype))
    if loop is None:
        raise TypeError(f"Wrong type ({given!r:.80}) of arguments for cupy_{name}")
    ins, kinds = loop
    xs = [np.asarray(x).astype(kind) for x, kind in zip(given, ins, strict=True)]
    if name == "power" and xs[1].dtype.kind == "i":
        xs[1] = np.maximum(xs[1], 0)  # of negative powers it makes something, and says nothing
    found = _as_there(name, xs, plain(*xs) if name != "where" else np.where(*xs))
    found = [
        np.asarray(y).astype(kind)
        for y, kind in zip(found if isinstance(found, tuple) else (found,), kinds, strict=True)
    ]
    for y, to in zip(found, outs, strict=False) if out is not None else ():
        np.copyto(to, y, casting, where)
    return (found[0] if len(found) == 1 else tuple(found)) if out is None else out


def _as_there(name: str, xs: Sequence[Any], found: Any) -> Any:
    """Where CuPy gives other numbers."""
    if name in ("divide", "true_divide") and found.dtype.kind == "c":
        x, y = (v / (abs(xs[1].real) + abs(xs[1].imag)) for v in xs)
        square = y.real * y.real + y.imag * y.imag
        real, imag = x.real * y.real + x.imag * y.imag, x.imag * y.real - x.real * y.imag
        found = np.stack([real / square, imag / square], -1).view(found.dtype)[..., 0]
    elif name == "log2" and found.dtype.kind == "c":
        found = np.log(xs[0]) * found.dtype.type(1 / np.log(2))
    elif name == "nextafter" and found.itemsize == 2:
        found = np.where(np.isinf(xs[0]), np.nan, found)
    return found


_OF_OPERATORS = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "neg": "negative",
    "pos": "positive",
    "abs": "absolute",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def _operators() -> Iterator[tuple[str, Callable[..., Any]]]:
    def plain(name: str) -> Callable[..., Any]:
        def method(self: DeviceArray, *other: Any) -> Any:
            if other and not isinstance(other[0], (DeviceArray, *_SCALARS)):
                _host(other[0])
                return NotImplemented
            given = [*map(_host, other)]
            arrays = [x for x in given if isinstance(x, np.ndarray)]
            if name == "__matmul__" and self.dtype.kind in "fc":
                refuse_library("cuBLAS")

            memory = self._memory
            inplace = name.startswith("__i") and name != "__invert__"
            mirrored = name.startswith("__r") and name != "__rshift__"
            word = name.strip("_")[inplace or mirrored :]
            operands = [*given, memory] if mirrored else [memory, *given]

            def work() -> Any:
                return _by_loop(
                    _OF_OPERATORS.get(word, word), operands, memory if inplace else None
                )

            if inplace:
                ask(work, [memory, *arrays], [memory])
                return self
            return _made(ask(work, [memory, *arrays]))

        return method

    binary = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
    for word in binary.split():
        yield f"__{word}__", plain(f"__{word}__")
        yield f"__r{word}__", plain(f"__r{word}__")
        yield f"__i{word}__", plain(f"__i{word}__")
    for word in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"):
        yield f"__{word}__", plain(f"__{word}__")


for _name, _method in _operators():
    setattr(DeviceArray, _name, _method)


# -- functions, by the names of their arguments in CuPy ------------------------------------
_ATTRIBUTES = "T mT dtype flags imag itemsize nbytes ndim real shape size strides".split()  # noqa: SIM905


def _table(text: str) -> dict[str, tuple[str, ...]]:
    rows = [line.split() for line in text.strip().splitlines()]
    return {name: tuple(arguments) for name, *arguments in rows}


_METHODS = _table("""
all axis out keepdims
any axis out keepdims
argmax axis out dtype keepdims
argmin axis out dtype keepdims
argsort axis kind
astype dtype order casting subok copy
clip min max out
conj
conjugate
copy order
cumprod axis dtype out
cumsum axis dtype out
diagonal offset axis1 axis2
dot b out
fill value
flatten order
max axis out keepdims
mean axis dtype out keepdims
min axis out keepdims
prod axis dtype out keepdims
ravel order
repeat repeats axis
reshape * order
round decimals out
sort axis kind
squeeze axis
sum axis dtype out keepdims
swapaxes axis1 axis2
trace offset axis1 axis2 dtype out
transpose *
view dtype
""")

_FUNCTIONS = _table("""
all a axis out keepdims
allclose a b rtol atol equal_nan
amax a axis out keepdims
amin a axis out keepdims
any a axis out keepdims
arange start stop step dtype
argmax a axis dtype out keepdims
argmin a axis dtype out keepdims
argsort a axis kind
argwhere a
array object dtype copy order subok ndmin
array_equal a1 a2 equal_nan
ascontiguousarray a dtype
asfortranarray a dtype
atleast_1d *
atleast_2d *
bincount x weights minlength
broadcast_arrays *
broadcast_to array shape
clip a a_min a_max out
column_stack tup
compress condition a axis out
concatenate tup axis out dtype casting
copy a order
copyto dst src casting where
count_nonzero a axis
cross a b axisa axisb axisc axis
cumprod a axis dtype out
cumsum a axis dtype out
diag v k
diagonal a offset axis1 axis2
diff a n axis prepend append
dot a b out
einsum * out optimize
empty shape dtype order
empty_like prototype dtype order shape
expand_dims a axis
extract condition a
eye N M k dtype order
fill_diagonal a val wrap
flatnonzero a
flip a axis
full shape fill_value dtype order
full_like a fill_value dtype order shape
identity n dtype
indices dimensions dtype
inner a b
isin element test_elements assume_unique invert
kron a b
lexsort keys
linspace start stop num endpoint retstep dtype axis
logspace start stop num endpoint base dtype axis
max a axis out keepdims
mean a axis dtype out keepdims
median a axis out overwrite_input keepdims
meshgrid * indexing sparse copy
min a axis out keepdims
moveaxis a source destination
nan_to_num x copy nan posinf neginf
nanmax a axis out keepdims
nanmin a axis out keepdims
ndim a
nonzero a
ones shape dtype order
ones_like a dtype order shape
outer a b
pad array pad_width mode
prod a axis dtype out keepdims
ravel a order
ravel_multi_index multi_index dims mode order
repeat a repeats axis
reshape a newshape order
roll a shift axis
rot90 k axes
searchsorted a v side sorter
shape a
size a
sort a axis kind
split ary indices_or_sections axis
squeeze a axis
stack tup axis out dtype casting
std a axis dtype out ddof keepdims
sum a axis dtype out keepdims
swapaxes a axis1 axis2
take_along_axis a indices axis
tensordot a b axes
tile A reps
trace a offset axis1 axis2 dtype out
transpose a axes
tri N M k dtype
tril m k
triu m k
unique ar return_index return_inverse return_counts axis equal_nan
unravel_index indices dims order
vdot a b
var a axis dtype out ddof keepdims
where condition x y
zeros shape dtype order
zeros_like a dtype order shape
""")
_WAITING = ("argwhere", "bincount", "compress", "extract", "flatnonzero", "nonzero", "unique")

_LINALG = _table("""
cholesky a
det a
eigh a UPLO
eigvalsh a UPLO
inv a
lstsq a b rcond
matrix_power M n
matrix_rank M tol
norm x ord axis keepdims
pinv a rcond
qr a mode
slogdet a
solve a b
svd a full_matrices compute_uv
tensorinv a ind
tensorsolve a b axes
""")

_UFUNCS = """
abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2
expm1 fabs float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside
hypot invert isfinite isinf isnan lcm ldexp left_shift less less_equal log log10 log1p log2 logaddexp
logaddexp2 logical_and logical_not logical_or logical_xor matmul maximum minimum mod modf multiply
negative nextafter not_equal positive pow power rad2deg radians reciprocal remainder right_shift rint
sign signbit sin sinh sqrt square subtract tan tanh true_divide trunc
""".split()  # noqa: SIM905

ATOMIC = {  # where CUDA has such an operation, and CuPy uses it
    "add": "int32 uint32 uint64 float16 float32 float64",
    "subtract": "int32 uint32",
    "maximum": "int32 uint32 uint64 float32 float64",
    "minimum": "int32 uint32 uint64 float32 float64",
    "bitwise_and": "int32 uint32 int64 uint64",
    "bitwise_or": "int32 uint32 int64 uint64",
    "bitwise_xor": "int32 uint32 int64 uint64",
}

_SHARED = """
bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128
dtype e finfo generic iinfo inf integer intp issubdtype nan newaxis pi promote_types
""".split()  # noqa: SIM905


_LIBRARY = ("matmul", "dot", "einsum", "tensordot", "inner", "vdot", "ndarray.dot")  # is cuBLAS
_SORTS = ("sort", "argsort", "lexsort", "median", "ndarray.sort", "ndarray.argsort")


def _checked(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[str, ...],
    waits: bool = False,
    owner: Any = None,
) -> Callable[..., Any]:
    """NumPy's function for arrays of the device, with CuPy's arguments only."""
    many = "*" in arguments
    writes = {"copyto": 0, "fill_diagonal": 0}.get(name, -1)  # to an argument
    at = arguments.index("out") if "out" in arguments else len(arguments)

    def call(*args: Any, **kwargs: Any) -> Any:
        unknown = [k for k in kwargs if k not in arguments]
        if unknown or (len(args) > len(arguments) and not many):
            raise NotImplementedError(
                f"cupy.{name} takes {arguments}, and no {unknown or args!r:.60}"
            )
        if arguments[:1] in (("a",), ("x",)) and args and not isinstance(args[0], DeviceArray):
            _host(args[0])
            raise TypeError(f"cupy.{name} takes arrays, and no {type(args[0]).__name__}")
        if waits:
            _wait()
        if name.endswith("min") and "arg" not in name and kwargs.get("out") is not None:
            raise TypeError("operand type(s) all returned NotImplemented from __array_ufunc__")
        given, more = [*map(_host, args)], {k: _host(v) for k, v in kwargs.items()}
        reads = [x for x in _all((given, list(more.values()))) if isinstance(x, np.ndarray)]
        reads += [_host(owner)] if owner is not None else []
        if name in _LIBRARY and any(x.dtype.kind in "fc" for x in reads):
            refuse_library("cuBLAS")
        if name in _SORTS:
            refuse_while_capturing("to sort")
        out = kwargs.get("out", args[at] if len(args) > at and not many else None)
        made = [x for x in _all(_host(out)) if isinstance(x, np.ndarray)]
        if name in ("ndarray.fill", "ndarray.sort"):
            made = [_host(owner)]
        elif writes >= 0:
            made = [given[writes]]
        found = ask(lambda: function(*given, **more), reads, made)
        if out is not None:
            return out
        return None if made else _made(found)

    call.__name__ = name
    return call


def _all(x: Any) -> list[Any]:
    return [leaf for y in x for leaf in _all(y)] if isinstance(x, tuple | list) else [x]


class Ufunc:
    """CuPy's: a call, and of NumPy's methods those that it has."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.plain = getattr(np, name)
        self.nin, self.nout = self.plain.nin, self.plain.nout
        self.by_loop = lambda *given, **more: _by_loop(self.name, given, **more)
        self.name = self.plain.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = tuple(f"x{k}" for k in range(self.nin))
        outs = args[self.nin :]
        if outs and self.name == "matmul":
            raise TypeError("_try_fastcall_matmul() got multiple values for argument 'out'")
        if outs:
            args, kwargs = args[: self.nin], {**kwargs, "out": outs if len(outs) > 1 else outs[0]}
        known = (*names, "out", "dtype", "casting", "where")
        return _checked(self.__name__, self.by_loop, known)(*args, **kwargs)

    def _lacks(self, method: str) -> NoReturn:
        raise NotImplementedError(f"`cupy_{self.name}.{method}` is not supported yet")

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        if self.name not in ("add", "multiply"):
            self._lacks("reduce")
        return (a.sum if self.name == "add" else a.prod)(axis, dtype, out, keepdims)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        if self.name not in ("add", "multiply"):
            self._lacks("accumulate")
        return (a.cumsum if self.name == "add" else a.cumprod)(axis, dtype, out)

    def reduceat(self, a: Any, *args: Any, **kwargs: Any) -> Any:
        if self.name != "add":
            self._lacks("reduceat")
        return _checked("add.reduceat", np.add.reduceat, ("a", "i", "axis", "dtype", "out"))(
            a, *args, **kwargs
        )

    def outer(self, a: Any, b: Any) -> Any:
        given = [_host(a), _host(b)]
        return _made(ask(lambda: self.plain.outer(*given), given))

    def at(self, a: DeviceArray, indices: Any, b: Any) -> None:
        if self.name not in ATOMIC:
            self._lacks("at")
        if str(a.dtype) not in ATOMIC[self.name].split():
            raise TypeError(f"cupy.{self.name}.at only supports {ATOMIC[self.name]}, not {a.dtype}")
        place, b, memory = a._place(indices), _host(b), a._memory
        reads = [x for x in (b, *place) if isinstance(x, np.ndarray)]
        run = self.plain.at if a.dtype.kind != "f" or self.name == "add" else self._rounding
        ask(lambda: run(memory, _wrapped(memory, place), b), [memory, *reads], [memory])

    def _rounding(self, memory: Any, place: Any, b: Any) -> None:
        """As CuPy does: by C's fmaxf and fminf."""
        found = memory.astype(np.float32)
        getattr(np, f"f{self.name[:3]}").at(found, place, np.asarray(b, np.float32))
        memory[place] = found[place]


def _take(a: Any, indices: Any, axis: int | None = None, out: Any = None) -> Any:
    size = a.size if axis is None else a.shape[axis]
    # NumPy's own way takes turns
    inside = np.asarray(indices, np.int64) % size if size else indices
    return np.take(a, inside, axis, out, "wrap")


def _linalg(name: str) -> Callable[..., Any]:
    checked = _checked(f"linalg.{name}", _not_raising(name), _LINALG[name], waits=True)

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_library("cuSOLVER")
        if _host(a).dtype.char not in "fdFD":
            raise TypeError(f"cupy.linalg.{name} takes no {a.dtype}")
        return checked(a, *args, **kwargs)

    return call


def _not_raising(name: str) -> Callable[..., Any]:
    """What does not converge is NaN, of which cuSOLVER says nothing."""
    function = getattr(np.linalg, name)

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(a, *args, **kwargs)
        except np.linalg.LinAlgError:
            made = function(np.ones_like(a), *args, **kwargs)
            for x in made if isinstance(made, tuple) else (made,):
                x[...] = np.nan
            return made

    return call


def _factored(name: str) -> Callable[..., Any]:
    """A function that leaves in a word of the device whether there were such factors."""
    library = "cublas" if name == "inv" else "cusolver"

    def call(a: Any, *args: Any) -> Any:
        refuse_library("cuSOLVER")
        if _host(a).dtype.char not in "fdFD":
            raise TypeError(f"cupy.linalg.{name} takes no {a.dtype}")
        words = xp.empty(1, np.int32)

        def work(*xs: Any) -> Any:
            try:
                found, word = getattr(np.linalg, name)(*xs), 0
            except np.linalg.LinAlgError:
                found, word = np.full_like(xs[-1], np.nan), 1
            _host(words)[...] = word
            return found

        found = _checked(f"linalg.{name}", work, _LINALG[name])(a, *args)
        getattr(_util, {"cublas": _CHECKS[0], "cusolver": _CHECKS[1]}[library])(name, words)
        return found

    return call


def _fft(name: str) -> Callable[..., Any]:
    checked = _checked(f"fft.{name}", getattr(np.fft, name), ("a", "n", "axis", "norm"))

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_library("cuFFT")  # which makes its plan of the lines at the first call
        return checked(a, *args, **kwargs)

    return call


class _OnHost:
    """A capsule for NumPy, which knows no other device."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _from_dlpack(x: Any, device: Any = None, copy: bool | None = None) -> Any:
    """As CuPy: for use on the current stream."""
    assert tuple(x.__dlpack_device__()) == (2, 0)
    stream = fake_cuda.get_current_stream().ptr or 1
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0), dl_device=device, copy=copy)
    return _made(np.from_dlpack(_OnHost(capsule)))


def _asarray(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """Of the CUDA Array Interface, too: CuPy waits for its stream."""
    said = getattr(a, "__cuda_array_interface__", None)
    if isinstance(a, DeviceArray) or said is None:
        return _checked("asarray", np.asarray, ("a", "dtype", "order"))(a, dtype, order)
    if (number := said.get("stream")) is not None:
        fake_cuda.stream_of(number).synchronize()
    found = np.asarray(_Interface(said, a))
    return _made(found)


class _Interface:
    def __init__(self, said: dict[str, Any], owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {**said, "version": 3}


class Namespace:
    """What an `xp` is to kernels. What is not here is refused by name."""

    def __init__(self, name: str, **members: Any) -> None:
        self.__name__ = name
        vars(self).update(members)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"{self.__name__}.{name} does not exist, or is not known here")


_CHECKS = (
    "_check_cublas_info_array_if_synchronization_allowed",
    "_check_cusolver_dev_info_if_synchronization_allowed",
)
_util = Namespace("cupy.linalg._util", **{name: lambda routine, words: None for name in _CHECKS})
_FACTORED = ("cholesky", "inv", "solve")
CALL = fake_cuda.CALL
_cuda = Namespace(
    "cupy.cuda",
    Device=fake_cuda.Device,
    Event=fake_cuda.Event,
    Stream=fake_cuda.Stream,
    MemoryPool=fake_cuda.MemoryPool,
    get_current_stream=fake_cuda.get_current_stream,
    get_elapsed_time=fake_cuda.get_elapsed_time,
    using_allocator=fake_cuda.using_allocator,
    set_pinned_memory_allocator=fake_cuda.set_pinned_memory_allocator,
    runtime=fake_cuda.Runtime,
    nvtx=fake_cuda.Ranges,
    nccl=fake_nccl,
    alloc_pinned_memory=fake_cuda.alloc_pinned_memory,
)


class RawKernel:
    """A kernel in CUDA C++, which the host runs (cuda_host.py)."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:
        self.kernel = HostKernel(code, name, options)

    def compile(self) -> None:
        """It is."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
    ) -> None:
        given = [_host(x) if isinstance(x, DeviceArray) else x for x in args]
        given = [x.copy() if getattr(x, "dtype", None) and x.dtype.names else x for x in given]
        arrays = [x for x in given if isinstance(x, np.ndarray)]
        ask(lambda: self.kernel(grid, block, given), arrays, arrays)


_strided = _checked(
    "lib.stride_tricks.as_strided", np.lib.stride_tricks.as_strided, ("x", "shape", "strides")
)
xp = Namespace(
    "cupy",
    __version__="14",
    RawKernel=RawKernel,
    **{
        n: _checked(n, getattr(np, n), known, n in _WAITING)
        for n, known in _FUNCTIONS.items()
        if n != "where"
    },
    **{n: Ufunc(n) for n in _UFUNCS},
    **{n: getattr(np, n) for n in _SHARED},
    where=_checked("where", lambda *xs: _by_loop("where", xs), _FUNCTIONS["where"]),
    asarray=_asarray,
    from_dlpack=_from_dlpack,
    take=_checked("take", _take, ("a", "indices", "axis", "out")),
    ndarray=DeviceArray,
    cuda=_cuda,
    get_default_memory_pool=lambda: fake_cuda.POOL,
    get_default_pinned_memory_pool=lambda: fake_cuda.PINNED,
    lib=Namespace(
        "cupy.lib", stride_tricks=Namespace("cupy.lib.stride_tricks", as_strided=_strided)
    ),
    fft=Namespace("cupy.fft", **{n: _fft(n) for n in ("fft", "ifft", "rfft", "irfft")}),
    linalg=Namespace(
        "cupy.linalg",
        _util=_util,
        **{n: (_factored if n in _FACTORED else _linalg)(n) for n in _LINALG},
    ),
)
