"""What users type means what they expect: copies, pickles, NumPy's functions, random numbers, dataclasses.

Each is checked against what NumPy, or Python, does with the same text."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from ostinato.ops.core.apply import weak_dtype
from ostinato.ops.core.spec import DTYPES
from ostinato.ops.core.tree import flatten, unflatten

import ostinato as ost
from ostinato.errors import ArgumentError, DonatedError, DTypeError, OstinatoError, TracedValueError
from tests.helpers import on

from . import numpy_calls
from .conftest import Tally

ROOT = Path(__file__).resolve().parents[2]


def script(code: str, *args: str, **env: str) -> str:
    """What a script prints."""
    return run("-W", "error", "-c", code, *args, **env)


def run(*args: str, **env: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": path, "OSTINATO_CACHE": "off", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not found.returncode, found.stderr
    return found.stdout


# -- random numbers ------------------------------------------------------------------------
DRAWN = """
import os, sys
import ostinato as ost
if len(sys.argv) > 1:
    ost.random.seed(int(sys.argv[1]))
noisy = ost.compile(lambda x: x + ost.random.uniform((2,), dtype=ost.float64))

def drawn():
    return *ost.random.uniform((2,)).tolist(), *noisy(ost.zeros(2)).tolist()

def of_a_child():
    ends = os.pipe()
    if not os.fork():
        os.write(ends[1], repr(drawn()).encode())
        os._exit(0)
    os.wait()
    return eval(os.read(ends[0], 1000))
"""


def test_each_process_and_each_forked_child_draws_numbers_of_its_own(tally: Tally) -> None:
    """And the seed that it tells makes them again; plans are the same."""
    code = DRAWN + (
        "seed = ost.random.seed()\n"
        "print((of_a_child(), of_a_child(), drawn(), drawn(), of_a_child(), seed, noisy.plan.id))"
    )
    first, second = eval(script(code)), eval(script(code))
    again = eval(script(code, str(first[-2])))
    assert again == first
    rows = [*first[:5], *second[:5]]
    assert len({x for row in rows for x in row}) == sum(map(len, rows))
    assert first[-2] != second[-2]
    assert first[-1] == second[-1]
    tally("processes with numbers of their own", 9)


# -- copies and pickles --------------------------------------------------------------------
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {p}": lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(6)},
    "out of band": lambda x: _out_of_band(x),
}


def _out_of_band(x: ost.Array) -> ost.Array:
    """With buffers that the sender goes on writing to."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(x, 5, buffer_callback=buffers.append)
    lent = [bytearray(b) for b in buffers]
    made = pickle.loads(text, buffers=lent)
    for b in lent:
        b[:] = bytes(len(b))
    return made


def test_copies_and_pickles_have_the_values_dtype_and_layout(tally: Tally) -> None:
    count = 0
    for mesh, split in (((1,), None), ((3,), 0), ((2, 2), (1, 0))):
        with on(mesh=mesh):
            for dtype in DTYPES:
                for make in (
                    lambda d, s=split: ost.asarray(np.arange(12).reshape(3, 4), split=s).astype(d),
                    lambda d, s=split: ost.asarray(np.arange(12).reshape(3, 4).astype(d), split=s),
                ):
                    for name, way in WAYS.items():
                        x = make(dtype)
                        y = way(x)
                        assert (y is not x, y.layout, y.dtype) == (True, x.layout, x.dtype), name
                        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), name
                        count += 1
    tally("copies and pickles", count)


def test_what_lay_on_another_mesh_is_put_where_this_one_may() -> None:
    with on(mesh=(2, 2)):
        text = pickle.dumps(ost.asarray(np.ones((4, 6)), split=(None, 1)))
    with on(3):
        assert pickle.loads(text).split == 1
    with on(1):
        assert pickle.loads(text).sum().item() == 24


def test_a_pickle_names_one_function_of_ours_and_numpys() -> None:
    class Names(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            found.add(f"{module}.{name}")
            return super().find_class(module, name)

    found: set[str] = set()
    Names(io.BytesIO(pickle.dumps({"w": ost.ones((2, 2)), "n": [ost.asarray(3)]}))).load()
    ours = {name for name in found if not name.startswith("numpy")}
    assert ours == {"ostinato.ops.core.array.restored"}


def test_neither_a_copy_nor_its_original_is_written_over() -> None:
    double = ost.compile(lambda x: x * 2, donate="x")
    for way in WAYS.values():
        x = ost.ones(1000)
        ost.evaluate(x)
        y = way(x)
        assert double(x).tolist() == [2.0] * 1000
        assert y.tolist() == [1.0] * 1000
        with pytest.raises(DonatedError, match=r"donated array.*test_typed.py:\d+"):
            way(x)
        x = way(y)
        assert double(x).tolist() == [2.0] * 1000
        assert y.tolist() == [1.0] * 1000


def test_what_is_traced_is_copied_but_not_pickled() -> None:
    f = ost.compile(lambda x: copy.deepcopy({"x": [x, 1]})["x"][0] + 1)
    assert f(ost.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(TracedValueError, match=r"pickle \(.*test_typed.py:\d+\): got float64\[2\]"):
        ost.compile(lambda x: pickle.dumps(x))(ost.ones(2))


def test_numbers_stay_numbers() -> None:
    seen = []
    f = ost.compile(
        lambda a: (seen.append(copy.copy(a)), ost.ones(2, dtype="float32") * seen[0])[1]
    )
    assert f(2.0).dtype == ost.float32


POOL = """
import multiprocessing, operator, os, sys
import numpy as np
import ostinato as ost

if __name__ == "__main__":
    x = ost.arange(6.0).reshape(2, 3)
    first = sys.argv[2] == "after"
    if first:
        ost.evaluate(x)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        sums = pool.map(operator.methodcaller("sum", 0), [x, x + 1])
        print([type(s).__name__ for s in sums], [s.tolist() for s in sums])
        print([v.tolist() for v in pool.map(np.asarray, [x])])
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_pools_of_processes_take_and_give_arrays(start: str, when: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.py"
    path.write_text(POOL)
    said = run(str(path), start, when)
    assert said.splitlines() == [
        "['Array', 'Array'] [[3.0, 5.0, 7.0], [5.0, 7.0, 9.0]]",
        "[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]",
    ]


# -- NumPy's functions ---------------------------------------------------------------------
def test_numpys_functions_are_ours_or_say_what_to_write(tally: Tally, thorough: bool) -> None:
    """Every public function of NumPy, in all the forms that its signature suggests."""
    dtypes = [d for d in DTYPES if d != "bfloat16"] if thorough else ["float64", "int32"]
    said = {"same": 0, "refused": 0}
    wrong, names = [], set()
    calls = [
        call
        for k, dtype in enumerate(dtypes)  # each form has its turn with one of two dtypes
        for n, call in enumerate(numpy_calls.trials([dtype], 9 if thorough else 2))
        if thorough or (n + k) % 2
    ]
    for call in calls:
        verdict = numpy_calls.verdict(call)
        names.add(call[0])
        if verdict in said:
            said[verdict] += 1
        else:
            wrong.append((call[0], call[2], call[3], verdict))
    assert not wrong, f"{len(wrong)} calls, the first: {wrong[:3]}"
    assert said["same"] > len(dtypes) * (2000 if thorough else 1000)
    tally("functions of NumPy", len(names))
    tally("calls as NumPy's", said["same"])
    tally("calls refused in a sentence", said["refused"])


def test_numpys_functions_stay_pending_and_are_traced() -> None:
    x = ost.ones((2, 3))
    assert np.sum(np.exp(x) + np.ones(3), axis=0)._operand is None
    y = ost.asarray([[1.0, 2.0, 4.0]])
    assert y.var(1, ddof=1).item() == np.var(y, 1, ddof=1).item() == np.var([1, 2, 4], ddof=1)
    f = ost.compile(lambda x: np.concatenate([np.mean(x, axis=0), np.linalg.norm(x, axis=0)]))
    np.testing.assert_allclose(f(x), [1.0] * 3 + [2**0.5] * 3)
    g = ost.grad(lambda x: np.sum(np.square(x)))(x)
    np.testing.assert_array_equal(g, np.full((2, 3), 2.0))
    with pytest.raises(TracedValueError, match=r"test_typed.py:\d+\): got .* is traced"):
        ost.compile(lambda x: np.array_equal(x, x))(x)


def test_what_numpy_writes_to_is_numpys() -> None:
    x, sums = ost.arange(4.0), np.zeros(4)
    sums += x
    sums -= np.ones(4)
    assert np.add(x, 1, out=sums) is sums
    assert np.sum(x.reshape(2, 2), axis=0, out=sums[:2]).tolist() == [2.0, 4.0]
    np.copyto(sums[2:], x[2:])
    np.add.at(sums, [0, 0], x[1])
    assert sums.tolist() == [4.0, 4.0, 2.0, 3.0]
    sums[:2] = x[:2]
    assert sums[x[0].astype(int)] == 0.0


def test_what_numpy_writes_to_may_be_ours() -> None:
    x, y = ost.arange(4.0), ost.zeros(())
    assert np.add(x, 1, out=x) is x
    assert np.sum(x, out=y) is y
    assert np.add.at(x, [0, 0], 1.0) is None
    np.copyto(x, 9.0, where=x == 2)
    assert (x.tolist(), y.tolist()) == ([3.0, 9.0, 3.0, 4.0], 10.0)
    z = x.reshape(2, 2)
    np.fill_diagonal(z, 0)
    assert z.tolist() == [[0.0, 9.0], [3.0, 0.0]]
    np.putmask(x, x > 3, 0)
    np.put_along_axis(x, np.array([0]), 7.0, 0)
    assert x.tolist() == [7.0, 0.0, 3.0, 0.0]


def test_hosts_functions_see_values(tmp_path: Path) -> None:
    x = ost.arange(6.0).reshape(2, 3)
    v = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(x, v)
    np.testing.assert_allclose(v, x)
    np.testing.assert_equal({"x": [x]}, {"x": [v]})
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(x, v + 1)
    assert np.array_equal(x, v) is True
    assert np.allclose(x, v + 1) is False
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    np.savetxt(tmp_path / "x.txt", x)
    loaded = [
        np.load(tmp_path / "x.npy"),
        np.load(tmp_path / "x.npz")["x"],
        np.loadtxt(tmp_path / "x.txt"),
    ]
    for found in (
        *loaded,
        np.asarray(x),
        np.array(x),
        np.array([x, x])[1],
        np.ascontiguousarray(x),
        np.stack([v, v])[0],
    ):
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, v)
    assert (np.array2string(x), f"{x[1, 2]:.2f}", list(x[0])[1].item()) == (
        np.array2string(v),
        "5.00",
        1.0,
    )
    assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((2, 3), 2, 6, 3)
    assert np.result_type(x, np.float32) == np.float64
    copied = np.array(x)
    copied[0] = 9
    assert x[0, 0].item() == 0.0


def test_masked_arrays_are_refused_wherever_they_come_in() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    x = ost.ones(2)
    double = ost.compile(lambda y: y * 2)
    for take in (
        lambda: ost.asarray(masked),
        lambda: ost.asarray([masked, masked]),
        lambda: ost.asarray([1.0, np.ma.masked]),
        lambda: x + masked,
        lambda: ost.sum(masked),
        lambda: np.add(masked, x),
        lambda: np.concatenate([x, masked]),
        lambda: x.at[0].set(np.ma.masked),
        lambda: x[np.ma.masked_array([0, 1], [False, True])],
        lambda: double(masked),
        lambda: double([masked]),
        lambda: double({"a": masked}),
        lambda: ost.full(2, np.ma.masked),
        lambda: ost.where(masked > 1, x, x),
        lambda: ost.repeat(2, lambda s: s, masked),
        lambda: ost.run(double.plan_for(x), masked),
        lambda: ost.save_state("nowhere", {"a": masked}, step=1),
        lambda: ost.save("nowhere.npy", masked),
        lambda: ost.random.uniform((2,), low=masked),
    ):
        with pytest.raises(ArgumentError, match=r"test_typed.py:\d+\): got a masked array.*filled"):
            take()
    assert (masked + x).tolist() == [2.0, None]  # NumPy's, which takes ours as values


# -- dataclasses ---------------------------------------------------------------------------
class Helper:
    def __init__(self) -> None:
        self.rate = 2.0


@dataclass
class Model:
    w: Any
    b: Any = 1.0
    gain: InitVar[float] = 2.0
    made: Any = field(init=False, default=3.0)
    late: Any = field(init=False)
    count: ClassVar[int] = 0

    def __post_init__(self, gain: float) -> None:
        self.scale = gain
        self.sizes = [1, 2]
        self.turned = [ost.asarray(self.w).T]
        self.helper = Helper()
        self.parent = self

    @cached_property
    def norm(self) -> Any:
        return ost.sum(self.w * self.w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    w: Any
    size: Any = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 4)


class Base:
    __slots__ = ("aside",)


@dataclass(slots=True)
class Slotted(Base):
    w: Any


def _models() -> list[Any]:
    slotted = Slotted(ost.ones(2))
    slotted.aside = "label"
    late = Model(ost.ones((2, 3)))
    late.late = ost.ones(2)
    warm = Model(ost.ones((2, 3)), 2.0, gain=5.0)
    assert warm.norm.item() == 6.0
    return [Model(ost.ones((2, 3))), late, warm, Frozen(w=ost.ones(2)), slotted]


def _beside(x: Any) -> dict[str, Any]:
    found = {
        n: getattr(x, n) for n in ("scale", "sizes", "made", "size", "aside", "b") if hasattr(x, n)
    }
    # numbers in fields go through a compiled function as inputs
    return {n: v.item() if isinstance(v, ost.Array) else v for n, v in found.items()}


def test_dataclasses_keep_what_is_beside_their_fields(tally: Tally) -> None:
    for x in _models():
        through = ost.compile(lambda m: m)
        ways = (
            lambda m: unflatten(*reversed(flatten(m))),
            lambda m: ost.tree_map(lambda v: v, m),
            through,
            through,
            copy.deepcopy,
            lambda m: pickle.loads(pickle.dumps(m)),
        )
        for way in ways:
            y = way(x)
            assert type(y) is type(x)
            assert repr(_beside(y)) == repr(_beside(x))
            assert np.array_equal(y.w, x.w)
            if isinstance(x, Model):
                assert np.array_equal(y.turned[0], x.turned[0])
                assert y.sizes is not x.sizes
                assert y.norm.item() == 6.0
                assert hasattr(y, "late") == hasattr(x, "late")
        tally("ways of dataclasses", len(ways))


def test_what_is_beside_the_fields_is_part_of_the_signature() -> None:
    """Whatever is set anew is seen, on hits and on misses."""

    @ost.compile
    def f(m: Model) -> Any:
        return m.w.sum() * m.scale + len(m.sizes) + m.turned[0].sum() * m.helper.rate + m.norm * 0

    def wanted(m: Model) -> float:
        return m.w.sum().item() * m.scale + len(m.sizes) + m.turned[0].sum().item() * m.helper.rate

    m = Model(ost.ones((2, 3)))
    changes = (
        lambda: setattr(m, "scale", 3.0),
        lambda: setattr(m, "scale", 3),
        lambda: m.sizes.append(7),
        lambda: setattr(m, "turned", [ost.zeros(2)]),
        lambda: m.turned.append("x"),
        lambda: setattr(m, "w", ost.ones((3, 3))),
        lambda: setattr(m, "helper", Helper()),
        lambda: setattr(m.helper, "rate", 5.0),
        lambda: setattr(m, "more", "text"),
        lambda: m.norm,
    )
    for change in changes:
        assert f(m).item() == f(m).item() == wanted(m)
        change()
        assert f(m).item() == f(m).item() == wanted(m)
    slotted = Slotted(ost.ones(2))
    g = ost.compile(lambda m: m.w + m.aside)
    for slotted.aside in (1.0, 2.0, -0.0):
        assert g(slotted).tolist() == [1 + slotted.aside] * 2


def test_gradients_are_of_all_arrays_of_a_dataclass() -> None:
    g = ost.grad(lambda m: (m.w * m.scale).sum() + (3 * m.turned[0]).sum() + m.norm)(_models()[2])
    assert (g.w.tolist(), g.turned[0].tolist()) == ([[7.0] * 3] * 2, [[3.0] * 2] * 3)


# -- numbers in the state of loops ---------------------------------------------------------
def _loops(step: Any, x: ost.Array) -> list[Any]:
    """Three turns."""

    def turn(s: Any) -> Any:
        return step(s, x)

    eager = [
        lambda s: ost.repeat(3, turn, s),
        lambda s: ost.scan(lambda t, _: (turn(t), None), s, length=3)[0],
        lambda s: ost.while_loop(lambda t: t[1] < 3, lambda t: (turn(t[0]), t[1] + 1), (s, 0))[0],
    ]
    return [*eager, *map(ost.compile, eager)]


def test_a_number_in_a_loops_state_is_as_weak_as_elsewhere(tally: Tally, thorough: bool) -> None:
    """The loop gives what the same loop in Python gives, with its dtype."""
    steps: dict[str, Any] = {
        "s + x.sum()": lambda s, x: s + x.sum(),
        "s * 2 + x[0]": lambda s, x: s * 2 + x[0],
        "s + 1": lambda s, x: s + 1,
        "s + 0.5": lambda s, x: s + 0.5,
        "s * 1j": lambda s, x: s * 1j,
        "x[1]": lambda s, x: x[1],
        "where": lambda s, x: ost.where(s > 2, s, x[2]),
        "maximum": lambda s, x: ost.maximum(s, x[2]),
    }
    count = 0
    kinds = [d for d in DTYPES if d != "bool"] if thorough else ["float32", "int8", "complex64"]
    for n, dtype in enumerate(kinds):
        x = ost.asarray([1, 2, 3], dtype=dtype)
        for start in (0, 1.5, 2j, -1):
            for k, (name, step) in enumerate(steps.items()):
                if not thorough and (k + n) % 3:
                    continue
                by_hand = start
                try:
                    for _ in range(3):
                        by_hand = step(by_hand, x)
                except (OstinatoError, TypeError):
                    continue
                wanted = ost.asarray(by_hand)
                fits = weak_dtype(type(start), wanted.dtype) == wanted.dtype
                for loop in _loops(step, x):
                    where = f"{name} of {dtype} from {start}"
                    if not fits:  # a float that becomes a whole number
                        with pytest.raises(DTypeError, match="going in and"):
                            loop(start)
                        continue
                    got = loop(start)
                    assert (got.dtype, got.shape) == (wanted.dtype, ()), where
                    np.testing.assert_allclose(got, wanted, 1e-3, err_msg=where)
                    count += 1
    tally("loops with numbers", count)


def test_numbers_after_loops_are_weak_and_arrays_are_not() -> None:
    x = ost.ones(2, dtype="float32")
    f = ost.compile(lambda n: x * ost.repeat(3, lambda s: s + 0.5, n))
    assert f(1).dtype == ost.float32
    s, n = ost.repeat(3, lambda t: (t[0] + x.sum(), t[1] + 1), (0.0, 0))
    assert ((x * n).dtype, s.dtype, n.item()) == (ost.float32, ost.float32, 3)
    assert ost.cond(x.sum() > 0, lambda s: s * x, lambda s: x, 2.0).dtype == ost.float32
    assert ost.grad(lambda a: ost.repeat(3, lambda s: s + a * a, 0.0))(x[0]).item() == 6.0
    with pytest.raises(DTypeError, match=r"repeat \(.*float64 going in and int64 coming out"):
        ost.repeat(3, lambda s: ost.asarray(2), 0.5)


# -- memory --------------------------------------------------------------------------------
NO_MEMORY = """
import resource
import numpy as np
import ostinato as ost
from ostinato.errors import MemoryLimitError

small = ost.ones(1000)
work = ost.compile(lambda x: ost.sort(x * 2).sum())
assert work(small).item() == 2000.0
sessions = [ost.session(), ost.connect(3)]
assert work(small).item() == 2000.0
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20),) * 2)
big = 10**9
calls = [
    ("full", lambda: ost.evaluate(ost.ones(big))),
    ("sort", lambda: ost.evaluate(ost.sort(ost.ones(big) * 2)[:3])),
    ("fused", lambda: ost.compile(lambda x: ost.zeros(big) + x[0] * 3)(small)),
    ("loop", lambda: ost.evaluate(ost.repeat(3, lambda s: ost.sort(s * 2), ost.zeros(big)))),
    ("sort", lambda: ost.evaluate(ost.sort(ost.random.uniform((big,), split=0))[:2])),
    ("an allocation", lambda: ost.asarray(np.broadcast_to(np.float64(1), big))),
]
count = 0
for name, call in calls * 2:
    try:
        call()
    except MemoryError as error:
        assert isinstance(error, MemoryLimitError), repr(error)
        assert str(error).startswith(name), error
        assert "(<string>:" in str(error) and "MiB" in str(error), error
        count += 1
    assert work(small).item() == 2000.0
    assert ost.random.uniform((1000,), seed=3).sum().item() > 0
sessions[1].close()
assert work(small).item() == 2000.0
print(count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_no_memory_is_an_error_with_operation_and_line_and_the_session_goes_on(
    tally: Tally,
) -> None:
    count = int(script(NO_MEMORY))
    assert count == 12
    tally("allocations refused", count)


# -- other libraries -----------------------------------------------------------------------
PLOTS: dict[str, Any] = {
    "plot": lambda plt, x: plt.plot(x),
    "plot of two": lambda plt, x: plt.plot(x, x * 2, "r-"),
    "scatter": lambda plt, x: plt.scatter(x, x, c=x, s=x + 1),
    "hist": lambda plt, x: plt.hist([x, x + 1], bins=3),
    "bar": lambda plt, x: plt.bar(x, x),
    "errorbar": lambda plt, x: plt.errorbar(x, x, yerr=x * 0.1),
    "fill_between": lambda plt, x: plt.fill_between(x, x, x + 1),
    "imshow": lambda plt, x: plt.imshow(x.reshape(5, 1) * x),
    "contourf": lambda plt, x: plt.contourf(x.reshape(5, 1) * x),
    "boxplot": lambda plt, x: plt.boxplot(x),
    "limits": lambda plt, x: plt.xlim(x[0], x[4]),
}


def test_matplotlib_draws_what_it_draws_of_numpy(tally: Tally) -> None:
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    for name, draw in PLOTS.items():
        pictures = []
        for x in (np.arange(5.0), ost.arange(5.0)):
            figure = plt.figure()
            draw(plt, x)
            figure.canvas.draw()
            pictures.append(bytes(figure.canvas.buffer_rgba()))
            plt.close(figure)
        assert pictures[0] == pictures[1], name
    tally("plots", len(PLOTS))


FITTED = """
import numpy as np
import ostinato as ost
from joblib import Parallel, delayed
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 4)), (rng.normal(size=60) > 0).astype(int)
double = ost.compile(lambda x: (x * 2).sum(0))

def fitted(x, y):
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0, 10.0]}, n_jobs=2).fit(x, y)
    parts = train_test_split(x, y, random_state=0)
    return [
        search.cv_results_["mean_test_score"], search.predict(x), *parts,
        LogisticRegression().fit(x, y).predict(x), StandardScaler().fit_transform(x),
        KMeans(2, n_init=1, random_state=0).fit(x).labels_,
        *Parallel(2)(delayed(np.sum)(v, axis=0) for v in (x, x + 1)),
        *Parallel(2)(delayed(double)(v) for v in (x, x + 1)),
    ]

pairs = list(zip(fitted(ost.asarray(x), ost.asarray(y)), fitted(x, y), strict=True))
for ours, theirs in pairs:
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
print(len(pairs))
"""


@pytest.mark.slow
def test_scikit_learn_and_joblib_work_with_arrays(tally: Tally) -> None:
    pytest.importorskip("sklearn")
    tally("results of scikit-learn and joblib", int(run("-c", FITTED)))
