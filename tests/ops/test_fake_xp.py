"""Every kernel with an `xp` that is not NumPy (tests/fake_xp.py): node by node, operands moved in and
results moved out, against the same node with NumPy.

What cannot run there is listed with its reason, and so is what makes the host wait for values. A test
fails where something unlisted is refused or waits, and where something listed no longer is."""

from __future__ import annotations

import importlib
import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS, Graph, Node
from ostinato.ops.core.build import Builder
from ostinato.ops.core.registry import ANY
from ostinato.ops.core.spec import Spec, float32
from ostinato.ops.cpu.fused import WITH_PRODUCT
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.gpu import factor_notes
from ostinato.ops.linalg import factorizations, matrices
from ostinato.ops.planned.collective import STORED

import ostinato as ost
from tests import fake_cuda, fake_xp
from tests.cupy_loops import LOOPS, installed
from tests.fake_xp import counted, from_host, to_host, xp
from tests.thorough import THOROUGH

from .nodes import SAMPLED, nodes_of, run, same
from .samples import BF16, NOT_SAMPLED, SAMPLES, TRIED
from .test_distances import operands as distances_of
from .test_indices import check, splittable, ways

OURS = {"arrived", "captures", "tick", "count", "nulls", "null"}  # of the fake alone
Ran = tuple[Graph, Node, list[Any], list[Any]]  # a node, its operands, and what NumPy makes of them


# -- what the planner puts into graphs -------------------------------------------------------
_rng = np.random.default_rng(17)


def normal(*shape: int) -> Any:
    return _rng.normal(size=shape).astype(np.float32)


LOWERED: dict[
    str, tuple[Any, ...]
] = {  # functions in whose program, on a CPU, the operation stands
    "fused": (lambda x, y: ost.exp(x) * y + 1, normal(200, 30), normal(200, 30)),
    "fused_rows": (lambda x: (ost.exp(x) * 2).sum(1), normal(200, 30)),
    "fused_joins": (lambda x: 2 * ost.roll(x, 1, 0) + x, normal(200, 300)),
    "fused_nest": (
        lambda x, c: ost.argmin(((x[:, None] - c) ** 2).sum(-1), axis=1),
        *(normal(2000, 8), normal(5, 8)),
    ),
    "fused_matmul": (
        lambda a, b, c: ost.maximum(a @ b + c, 0),
        *(normal(130, 70), normal(70, 200), normal(200)),
    ),
    "fused_matmul_rows": (
        lambda a, b, c: ost.tanh(a @ b + c).sum(1),
        *(normal(130, 70), normal(70, 200), normal(200)),
    ),
}
_TABLE, _CENTRES = normal(6, 9), normal(4, 9)
_CENTRES[1] = _TABLE[2] * (1 + 1e-4)  # so near that digits are lost
BUILT: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {  # operands and parameters
    "addend": [((normal(3, 2),), {})],
    "count": [((normal(7, 5),), {"axes": (0,)}), ((normal(7, 5),), {"axes": (0, 1)})],
    "gram": [((normal(70, 5),), {})],
    "check_bounds": [((np.array([0, -5, 4]),), {"size": 5, "name": "take"})],
    "mark": [((normal(3, 2),), {})],
    "narrow": [((normal(3, 2),), {})],
    "pair_distances": [(tuple(distances_of(_TABLE, _CENTRES)), {})],
    "positive_bits": [((normal(3, 130),), {}), ((normal(2, 5).astype(BF16),), {})],
    "round_addends": [((normal(3, 2),), {"dtype": np.dtype(np.float16)})],
    "where_positive": [((_rng.integers(0, 256, (3, 16), np.uint8), normal(3, 70)), {})],
    "wide_matmul": [((normal(4, 6).astype(BF16), normal(6, 3).astype(BF16)), {"dtype": float32})],
    "wide_conv": [
        (
            (normal(2, 5, 1, 3).astype(BF16), normal(3, 3, 1, 2).astype(BF16)),
            {
                **dict.fromkeys(("strides", "dilation", "every"), (1,)),
                "offsets": (-1,),
                "extents": (5,),
                "dtype": float32,
            },
        )
    ],
    "widen_sum": [((normal(3, 2).astype(BF16),), {"dtype": float32})],
}
EXTRA: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {  # what samples leave out
    "put": [
        (
            (normal(5, 4).astype(kind), np.array([3, 1, 3, -2, 3, 0, 1]), _rows.astype(kind)),
            {"axis": 0, "mode": mode},
        )
        for _rows in [normal(7, 4) * 3]
        for kind in (np.int8, np.int64, np.float16, BF16, np.float64, np.complex64, np.bool_)
        for mode in ("set", "add", "multiply", "max")
        if mode != "max" or kind != np.complex64
    ],
    "put_along_axis": [
        (
            (np.zeros((2, 4), kind), np.array([[2, 2, -2], [0, -3, 1]], i), np.ones((2, 3), kind)),
            {"axis": 1},
        )
        for kind in (np.int8, np.int64, np.float32, np.complex64)
        for i in (np.int8, np.int64)
    ],
}


def built(name: str, operands: tuple[Any, ...], params: dict[str, Any]) -> Ran:
    builder = Builder([Spec(x.shape, x.dtype) for x in operands])
    outs = builder.call(name, *range(len(operands)), **params)
    graph = builder.graph([outs])
    return graph, graph.nodes[0], [*operands], run(graph, graph.nodes[0], operands)


def lowered(name: str) -> Iterator[Ran]:
    if why_not() or (name in WITH_PRODUCT and isinstance(onednn.library(), str)):
        pytest.skip("made where there is LLVM, and for products oneDNN")
    function, *operands = LOWERED[name]
    compiled = ost.compile(function)
    compiled(*map(ost.asarray, operands))
    graph = compiled.plan.program.graph
    values = list(operands)
    for node in graph.nodes:
        given = [values[v] for v in node.inputs]
        values += run(graph, node, given)
        if node.op == name:
            yield graph, node, given, values[-len(node.specs) :]


def ran_by_numpy(name: str) -> Iterator[Ran]:
    """Each node that there is of an operation."""
    yield from nodes_of(name) if name in SAMPLES else lowered(name) if name in LOWERED else ()
    for operands, params in (*BUILT.get(name, ()), *EXTRA.get(name, ())):
        yield built(name, operands, params)


# -- what does not run there -----------------------------------------------------------------
MACHINE_CODE = "numbers of elements are told by where they lie, which only generated kernels read"
NO_KERNEL = "run by the worker itself: control flow, collectives, what gradients leave behind"
FILES = "a file's part is read to the host's memory"
NOT_RUN = {
    "fused_tiles": "made for GPUs; see planner/test_take_operands.py",
    "eig": "CuPy has none for all versions of CUDA",
    **dict.fromkeys(("first_number", "numbers", "bits32", "bits64", "normal32"), MACHINE_CODE),
    "counted": MACHINE_CODE,
    "join_pieces": "interiors are computed apart on CPUs alone",
    "joined": "taken into kernels, or taken apart",
    "fused_foreach": "parts of one kernel, by a table; see planner/test_horizontal.py",
    "fused_product": "made for the libraries of CPUs alone",
    "fused_steps": "made for the caches of CPUs alone",
    "normal64": MACHINE_CODE,
    **dict.fromkeys(("read", "write", *STORED), FILES),
    **{n: NO_KERNEL for n, op in OPS.items() if not (op.kernel or op.run.ufunc or op.view)},
}
RUN = sorted(set(OPS) - set(NOT_RUN))

# what the host reads while it runs: an error that depends on values, or what to do next
_BOUNDS, _SINGULAR = "places out of bounds are an error", "a singular matrix is an error"
_STATUS = "CuPy looks whether the factorization succeeded"
WAITS = {
    **dict.fromkeys(("take", "take_along_axis", "take_places", "put", "check_bounds"), _BOUNDS),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice"), _BOUNDS),
    **dict.fromkeys(("solve", "solve_triangular"), _SINGULAR),
    **dict.fromkeys(("cholesky", "det", "slogdet", "eigh", "svd", "pinv", "lstsq"), _STATUS),
    **dict.fromkeys(("qr", "qr_of_parts", "reflectors"), _STATUS),
    **dict.fromkeys(("betainc", "gammainc", "gammaincc"), "some elements' series are longer"),
    "expm": "the norm says how often to square",
    **dict.fromkeys(("sqrtm", "logm", "signm"), "the error says when to end"),
    "lu": "each column's pivot says which rows change places",
    "pair_distances": "what lost digits is made anew, row by row",
    "put_along_axis": "places that stand twice are looked for, where CuPy has no atomic operation",
    "parity": "an order in which a place stands twice is an error",
    **{f"segment_{m}": "as put_along_axis" for m in ("sum", "prod", "min", "max")},
    **dict.fromkeys(("distinct", "distinct_of_parts"), "how many values there are"),
    "tally": "CuPy looks for the largest number",
    **dict.fromkeys(("print", "callback"), "it is the host that prints, and is called"),
    "pow": "square roots have other signs, where there are any",
    **dict.fromkeys(TRIED.split(), "some elements take more tries"),
    **dict.fromkeys(("random_bits", "normal"), "the seed is expanded to a key"),
}


def on_the_device(ran: Ran) -> tuple[list[Any], int]:
    """What the node makes there, and how often the host waited."""
    graph, node, operands, _ = ran
    moved = [from_host(x) for x in operands]
    before = counted.waits
    with np.errstate(all="ignore"):
        found = run(graph, node, moved, xp=xp)
    assert all(
        to_host(y).tobytes() == x.copy("K").tobytes() for x, y in zip(operands, moved, strict=True)
    )
    return [to_host(y) for y in found], counted.waits - before


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", RUN)
def test_on_the_device(name):
    waited, some = 0, False
    for ran in ran_by_numpy(name):
        some = True
        _, node, _, wanted = ran
        found, waits = on_the_device(ran)
        waited += waits
        for y, w in zip(found, wanted, strict=True):
            same(y, w, str(node))
    assert some, f"{name} has neither samples nor a place in LOWERED, BUILT or NOT_RUN"
    assert bool(waited) == (name in WAITS), f"{name} made the host wait {waited} times"


@pytest.mark.parametrize("name", [n for n in SAMPLED if n in RUN])
def test_parts_on_the_device(name):
    """Parts of operands, which kernels that are told their place need; and monoids."""
    for k, (graph, node, operands, made) in enumerate(nodes_of(name)):
        if k > 2 and k % 3 and not THOROUGH:
            continue
        ins = tuple(graph.specs[v] for v in node.inputs)
        indices = OPS[name].indices(ins, node.specs, node.kw)
        for label in splittable(indices):
            way = ways(indices, label, node, ins)[0]
            check(graph, node, operands, made, {label: way}, xp=xp)


@pytest.mark.parametrize("name", [n for n in SAMPLED if OPS[n].run.overwrite])
def test_overwrite_on_the_device(name):
    """A result may be written over an operand of its size."""
    allowed = OPS[name].run.overwrite
    for graph, node, operands, (made,) in nodes_of(name):
        for k, x in enumerate(operands):
            if (x.shape, x.dtype) == (made.shape, made.dtype) and (k in allowed or allowed == ANY):
                given = [from_host(y) for y in operands]
                with np.errstate(all="ignore"):
                    run(graph, node, given, outs=[given[k]], xp=xp)
                same(to_host(given[k]), made, f"{node} over its operand {k}")


LARGE = ("cholesky", "solve_triangular", "solve", "qr", "svd", "pinv", "lstsq")


@pytest.mark.parametrize("name", LARGE)
def test_large_matrices_on_the_device(name, monkeypatch):
    """As matrices are worked on that are not left to one call of `xp.linalg`."""
    monkeypatch.setattr(matrices, "MAX_NUMPY_ROWS", 0)
    monkeypatch.setattr(factorizations, "HALVED", 1)
    for ran in nodes_of(name):
        found, _ = on_the_device(ran)
        for y, w in zip(found, ran[3], strict=True):
            same(y, w, str(ran[1]))


def test_lists_name_operations():
    assert set(WAITS) <= set(RUN)
    assert set(LOWERED) | set(BUILT) <= set(NOT_SAMPLED)


def signature_of(cupy: Any, name: str) -> str:
    """CuPy's compiled methods tell their arguments in their first line only."""
    return getattr(cupy.ndarray, name).__doc__ or ""


def test_what_the_fake_has_cupy_has() -> None:
    """Where it is installed, which needs no GPU: functions, their arguments, and what is used of `cupy.cuda`."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        pytest.skip("needs CuPy")
    for name, arguments in fake_xp._FUNCTIONS.items():
        function = getattr(cupy, name)
        if "*" in arguments or name in ("array", "rot90", "size"):  # other names, or none
            continue
        known = [*inspect.signature(function).parameters]
        assert {*arguments} <= {*known}, name
        assert [*arguments] == sorted(arguments, key=known.index), f"{name}: in CuPy's order"
    for name, arguments in fake_xp._LINALG.items():
        assert {*arguments} <= {*inspect.signature(getattr(cupy.linalg, name)).parameters}, name
    for name in (*fake_xp._UFUNCS, *fake_xp._SHARED):
        assert hasattr(cupy, name), name
    for name in (*fake_xp._METHODS, *fake_xp._ATTRIBUTES):
        assert hasattr(cupy.ndarray, name), name
    for name, arguments in fake_xp._METHODS.items():
        said = re.match(rf"_ndarray_base\.{name}\(self(.*?)\) *(->|\n|$)", signature_of(cupy, name))
        if said is not None and "*" not in said[1]:
            words = [w.split("=")[0].split()[-1] for w in said[1].split(",") if w.strip()]
            assert [*arguments] == [w for w in words if w in arguments], name
    assert installed() == LOOPS
    takes = [inspect.signature(getattr(cupy.linalg._util, name)) for name in factor_notes.CHECKS]
    assert all(len(one.parameters) == 2 for one in takes)
    for name in ("Device", "Event", "Stream", "MemoryPool"):
        real, fake = getattr(cupy.cuda, name), getattr(fake_cuda, name)
        ours = {n for n in vars(fake) if not n.startswith("_")} - OURS
        assert {n for n in ours if not hasattr(real, n)} == set(), name
    for name in vars(fake_xp._cuda):
        assert name == "nccl" or hasattr(cupy.cuda, name) or name.startswith("_"), name
    for name in vars(fake_cuda.Runtime):
        assert name.startswith("_") or hasattr(cupy.cuda.runtime, name), name


def test_kernels_do_not_ask_which_library_xp_is():
    """What a CPU does otherwise is said in its own room: of arrays that its functions take."""
    root = Path(__file__).parents[2] / "ops"
    asked = re.compile(r"\bxp (is|is not|==|!=) np\b")
    files = {p.relative_to(root): p.read_text() for p in root.rglob("*.py")}
    assert len(files) > 50
    assert [str(name) for name, text in files.items() if asked.search(text)] == []


def test_errors_of_values_on_the_device():
    """They are what they are with NumPy."""
    for name, operands, params, error in (
        ("take", (np.zeros(3), np.array([3])), {"axis": 0}, IndexError),
        ("check_bounds", (np.array([-6]),), {"size": 5, "name": "take"}, IndexError),
        ("cholesky", (-np.eye(2),), {"upper": False}, np.linalg.LinAlgError),
        ("solve", (np.zeros((2, 2)), np.ones((2, 1))), {}, np.linalg.LinAlgError),
        ("parity", (np.array([1, 1]),), {}, IndexError),
    ):
        for device in (np, xp):
            with pytest.raises(error):
                _run_built(name, operands, params, device)


def _run_built(name: str, operands: Any, params: dict[str, Any], device: Any) -> None:
    builder = Builder([Spec(x.shape, x.dtype) for x in operands])
    graph = builder.graph([builder.call(name, *range(len(operands)), **params)])
    given = [from_host(x) for x in operands] if device is xp else operands
    run(graph, graph.nodes[0], given, xp=device)


# -- the device itself -----------------------------------------------------------------------
HOST, DEVICE = np.arange(6.0).reshape(2, 3), from_host(np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "mix",
    [
        lambda: np.asarray(DEVICE),
        lambda: np.add(DEVICE, 1, out=HOST),
        lambda: np.exp(DEVICE),
        lambda: np.concatenate([DEVICE, DEVICE]),
        lambda: np.copyto(HOST, DEVICE),
        lambda: HOST.sum(out=DEVICE),
        lambda: HOST + DEVICE,
        lambda: operator.iadd(HOST, DEVICE),
        lambda: HOST.__setitem__(..., DEVICE),
        lambda: DEVICE + HOST,
        lambda: operator.iadd(DEVICE, HOST),
        lambda: DEVICE.__setitem__(..., HOST),
        lambda: DEVICE.__setitem__(0, [1.0, 2.0, 3.0]),
        lambda: DEVICE[np.array([0])],
        lambda: DEVICE.take(np.array([0])),
        lambda: xp.add(DEVICE, HOST),
        lambda: xp.add(DEVICE, 1, out=HOST),
        lambda: xp.asarray(HOST),
        lambda: xp.concatenate([DEVICE, HOST]),
        lambda: xp.sum(HOST),
        lambda: xp.any(True),
        lambda: xp.linalg.inv(HOST[:, :2]),
        lambda: list(DEVICE),
    ],
)
def test_arrays_do_not_mix(mix):
    kept = HOST.copy()
    with pytest.raises(TypeError):
        mix()
    np.testing.assert_array_equal(HOST, kept)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: xp.spacing(DEVICE), r"cupy\.spacing"),
        (lambda: xp.nditer(DEVICE), r"cupy\.nditer"),
        (lambda: xp.frompyfunc(abs, 1, 1), r"cupy\.frompyfunc"),
        (lambda: xp.take(DEVICE, 0, mode="clip"), "mode"),
        (lambda: xp.min(DEVICE, initial=0), "initial"),
        (lambda: DEVICE.min(initial=0), "initial"),
        (lambda: xp.add(DEVICE, 1, order="C"), "order"),
        (lambda: xp.maximum.reduce(DEVICE), r"maximum\.reduce"),
        (lambda: xp.subtract.accumulate(DEVICE), r"subtract\.accumulate"),
        (lambda: xp.multiply.at(DEVICE, 0, 1), r"multiply\.at"),
        (lambda: xp.linalg.eig(DEVICE), r"cupy\.linalg\.eig"),
        (lambda: DEVICE.ctypes, "ctypes"),
        (lambda: DEVICE.tolist(), "tolist"),
        (lambda: setattr(DEVICE, "shape", (6,)), "shape"),
    ],
)
def test_what_cupy_lacks_is_refused_by_name(call, said):
    with pytest.raises(NotImplementedError, match=said):
        call()


def test_dtypes_of_the_device():
    for wrong in (np.array(["a"]), np.array([None]), np.zeros(2, np.longdouble)):
        with pytest.raises(TypeError, match="dtype"):
            from_host(wrong)
    with pytest.raises(TypeError, match="linalg"):
        xp.linalg.inv(xp.eye(2, dtype=np.float16))
    x, pairs = from_host(np.ones(3, BF16)), from_host(np.ones(3, np.complex64))
    assert xp.where(x == x, x, x).dtype == np.float32  # there is no loop of bfloat16
    assert (x * 2).dtype == BF16
    xp.maximum(pairs, pairs)
    for call in (xp.logical_and, xp.floor_divide):
        with pytest.raises(TypeError, match="Wrong type"):
            call(pairs, pairs)


def test_where_cupy_takes_a_result() -> None:
    x, y = from_host(np.eye(3)), from_host(np.zeros((3, 3)))
    with pytest.raises(TypeError, match="multiple values"):
        xp.matmul(x, x, y)
    with pytest.raises(TypeError, match="NotImplemented"):
        x.min(axis=0, out=y[0])
    xp.matmul(x, x, out=y)
    x.max(axis=0, out=y[0])


def test_what_is_done_as_cupy_does_it():
    x = from_host(HOST)
    assert to_host(x[xp.array([2, -3])]).tolist() == HOST[[0, 1]].tolist()  # wraps around
    assert to_host(xp.take(x, xp.array([7]), axis=1)).tolist() == HOST[:, [1]].tolist()
    assert isinstance(x.sum(), type(x))
    assert isinstance(x[0, 0], type(x))
    x[0] = np.float64(2) * x[1] + 1
    assert to_host(x).tolist() == [[7, 9, 11], [3, 4, 5]]
    x.real -= 1
    x += x
    x[1, 2][...] = 1  # one element is a view, too
    assert to_host(x).tolist() == [[12, 16, 20], [4, 6, 1]]
    z, stream = x + 0j, fake_cuda.Stream(non_blocking=True)
    fake_cuda.synchronize()
    with stream:
        stream.begin_capture(fake_cuda.Runtime.streamCaptureModeThreadLocal)
        z.imag = x
        stream.end_capture().launch()
    fake_cuda.synchronize()
    assert to_host(z)[0].tolist() == [12 + 12j, 16 + 16j, 20 + 20j]  # not before
    view = x[:, ::-1].T
    view[0] = 0
    assert to_host(x)[:, 2].tolist() == [0, 0]
    with pytest.raises(ValueError, match="two values for one place"):
        x[xp.array([0, 2])] = x


def test_moves_and_waits_are_counted():
    before = vars(counted).copy()
    x = from_host(HOST)
    y = x + 1
    more = ("from_host", "asked", "launches", "allocations")
    assert vars(counted) == before | {name: before[name] + 1 for name in more}
    assert float(y.max()) == 6
    assert bool((y > 0).all())
    assert x[x > 2].shape == (3,)
    assert xp.nonzero(x)[0].shape == (5,)
    xp.linalg.cholesky(-xp.eye(2))  # of which nobody says that it failed
    assert counted.waits == before["waits"] + 4
    to_host(y)
    assert counted.to_host == before["to_host"] + 1
