"""What users type means what they expect: copies, pickles, NumPy's functions, random numbers, dataclasses.

Each is checked against what NumPy, or Python, does with the same text."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ostinato.ops.spec import DTYPES

import ostinato as ost
from ostinato.errors import DonatedError, TracedValueError
from tests.helpers import on

from .conftest import Tally

ROOT = Path(__file__).resolve().parents[2]


def script(code: str, *args: str, **env: str) -> str:
    """What a script prints."""
    return run("-W", "error", "-c", code, *args, **env)


def run(*args: str, **env: str) -> str:
    found = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off", **env},
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
    assert ours == {"ostinato.ops.array.restored"}


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
