"""What a call costs: a tiny one, many tiny operations in one, a small matrix product; a turn of a loop in
Python.

Every iteration takes the result of the one before, as it lies where the system keeps it; the loop
ends when the last result exists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from .peers import (
    dask_client,
    dask_threads,
    ostinato_end,
    torch_compiled,
    torch_end,
    torch_host,
    torch_tensor,
)
from .workload import Case, Numbers, Workload

Step = Callable[[Any], Any]
TURNS = 1000  # iterations in one `ost.repeat`


def case(start: Any, step: Step, end: Step, host: Callable[[Any], Any], turns: int) -> Case:
    """`x = step(x)` again and again. `end` waits for a result, `host` reads it. The answer is that
    of `turns` iterations.
    """

    def loop(n: int) -> None:
        x = start
        for _ in range(n):
            x = step(x)
        end(x)

    def answer() -> Any:
        x = start
        for _ in range(turns):
            x = step(x)
        end(x)
        return host(x)

    return Case(answer, loop)


def nothing(x: Any) -> None:
    pass


# -- the same, in each library -------------------------------------------------------------
def numpy_case(start: Numbers, step: Step, turns: int) -> Case:
    return case(start, step, nothing, np.asarray, turns)


def ostinato_case(start: Numbers, step: Step, turns: int) -> Case:
    import ostinato as ost

    return case(ost.asarray(start), ost.compile(step), ostinato_end, np.asarray, turns)


def jax_case(start: Numbers, step: Step, turns: int) -> Case:
    """The argument is donated: the result takes its memory, which is a little faster."""
    import jax  # type: ignore[import-not-found, unused-ignore]

    compiled = jax.jit(step, donate_argnums=0)

    def loop(n: int) -> None:
        x = jax.device_put(start)
        for _ in range(n):
            x = compiled(x)
        x.block_until_ready()

    def answer() -> Any:
        x = jax.device_put(start)
        for _ in range(turns):
            x = compiled(x)
        return np.asarray(x)

    return Case(answer, loop)


def torch_case(start: Numbers, step: Step, turns: int) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    run = torch_compiled(step)
    made = case(torch_tensor(start.copy()), run, torch_end, torch_host, turns)
    assert made.loop is not None
    quiet: Any = torch.inference_mode()
    return Case(quiet(made.answer), quiet(made.loop))


def dask_case(start: Numbers, step: Step, turns: int, cluster: bool) -> Case:
    import dask.array as da  # type: ignore[import-not-found, unused-ignore]

    if cluster:
        from distributed import wait  # type: ignore[import-not-found, unused-ignore]

        dask_client()
        held = da.from_array(start).persist()
        wait(held)

        def turn(x: Any) -> Any:
            y = step(x).persist()
            wait(y)
            return y

        return case(held, turn, nothing, lambda x: x.compute(), turns)
    keep = dask_threads()
    return case(
        da.from_array(start), lambda x: keep(step(x)), nothing, lambda x: x.compute(), turns
    )


def heat_case(start: Numbers, step: Step, turns: int) -> Case:
    import heat as ht  # type: ignore[import-not-found, unused-ignore]

    return case(ht.array(start, split=0), step, nothing, lambda x: x.numpy(), turns)


def everywhere(
    start: Callable[[], Numbers], step: Step, turns: int
) -> dict[str, Callable[[], Case]]:
    """The cases of a step that is written alike in all libraries."""
    return {
        "ostinato": lambda: ostinato_case(start(), step, turns),
        "numpy": lambda: numpy_case(start(), step, turns),
        "jax": lambda: jax_case(start(), step, turns),
        "torch": lambda: torch_case(start(), step, turns),
        "dask/threads": lambda: dask_case(start(), step, turns, False),
        "dask/cluster": lambda: dask_case(start(), step, turns, True),
        "heat": lambda: heat_case(start(), step, turns),
    }


# -- null ----------------------------------------------------------------------------------
def ones() -> Numbers:
    return np.ones(8, np.float32)


def plus_one(x: Any) -> Any:
    return x + 1


def repeated() -> Case:
    """All iterations inside the plan."""
    import ostinato as ost

    @ost.compile
    def many(x: Any) -> Any:
        return ost.repeat(TURNS, plus_one, x)

    @ost.compile
    def four(x: Any) -> Any:
        return ost.repeat(4, plus_one, x)

    x = ost.asarray(ones())
    whole = case(x, many, nothing, np.asarray, 1)
    return Case(lambda: np.asarray(four(x)), whole.loop, per=TURNS)


def jax_repeated() -> Case:
    import jax

    start = jax.device_put(ones())

    def many(trips: int) -> Any:
        return jax.jit(lambda x: jax.lax.fori_loop(0, trips, lambda _, y: plus_one(y), x))

    whole = case(start, many(TURNS), lambda x: x.block_until_ready(), np.asarray, 1)
    return Case(lambda: np.asarray(many(4)(start)), whole.loop, per=TURNS)


def tree_step(state: dict[str, Any], step: float) -> dict[str, Any]:
    return {"b": state["b"], "x": state["x"] + state["b"] * step}


def tree_case(compiled: Any, put: Step, end: Step) -> Case:
    """A dict of arrays and a number that is another one in each call: 0.5, 1.5, 0.5, ..."""
    start = {"b": put(ones()), "x": put(ones())}

    def loop(n: int) -> dict[str, Any]:
        state = start
        for k in range(n):
            state = compiled(state, 0.5 + k % 2)
        end(state["x"])
        return state

    return Case(lambda: np.asarray(loop(4)["x"]), loop)


def ostinato_tree() -> Case:
    import ostinato as ost

    return tree_case(ost.compile(tree_step), ost.asarray, nothing)


def jax_tree() -> Case:
    import jax

    return tree_case(jax.jit(tree_step), jax.device_put, lambda x: x.block_until_ready())


def torch_tree() -> Case:
    import torch

    quiet: Any = torch.inference_mode()
    made = tree_case(torch_compiled(tree_step, dynamic=None), torch.from_numpy, nothing)
    return Case(quiet(made.answer), quiet(made.loop))


NULL = Workload(
    "null",
    "x + 1 on 8 numbers; variants: all iterations in one call (repeat), a dict and a number that "
    "changes (pytree)",
    lambda: ones() + np.float32(4),
    {
        **everywhere(ones, plus_one, 4),
        "ostinato/repeat": repeated,
        "ostinato/pytree": ostinato_tree,
        "jax/repeat": jax_repeated,
        "numpy/pytree": lambda: tree_case(tree_step, np.asarray, nothing),
        "jax/pytree": jax_tree,
        "torch/pytree": torch_tree,
    },
)


# -- weights -------------------------------------------------------------------------------
LAYERS = 10


def weights() -> dict[str, Numbers]:
    """Twenty arrays, such as a small network's."""
    return {f"{kind}{k}": ones() + np.float32(k) for k in range(LAYERS) for kind in "bw"}


def descend(weights: dict[str, Any], rate: float) -> dict[str, Any]:
    return {name: w - rate * w for name, w in weights.items()}


def weights_case(compiled: Any, put: Step, end: Step) -> Case:
    """A dict of twenty arrays and a number that is another one in each call."""
    start = {name: put(w) for name, w in weights().items()}

    def loop(n: int) -> dict[str, Any]:
        found = start
        for k in range(n):
            found = compiled(found, 1e-6 * (1 + k % 2))
        end(found["w0"])
        return found

    return Case(lambda: np.asarray(loop(4)["w3"]), loop)


def ostinato_weights() -> Case:
    import ostinato as ost

    return weights_case(ost.compile(descend), ost.asarray, nothing)


def ostinato_model() -> Case:
    """The same of an object's method, which reads what is around it: its rate, a table, a function."""
    import ostinato as ost

    class Model:
        def __init__(self) -> None:
            self.rate, self.scales, self.rule = 1.0, {"w": 1.0, "b": 1.0}, descend

        @ost.compile
        def step(self, weights: dict[str, Any], rate: float) -> dict[str, Any]:
            return self.rule(weights, rate * self.rate * self.scales["w"])

    return weights_case(Model().step, ost.asarray, nothing)


def jax_weights() -> Case:
    import jax

    return weights_case(jax.jit(descend), jax.device_put, lambda x: x.block_until_ready())


WEIGHTS = Workload(
    "weights",
    "w - rate * w for a dict of 20 arrays of 8 numbers, where the rate is another one in each call; "
    "as a method of an object (model)",
    lambda: (ones() + np.float32(3)) * np.float32((1 - 1e-6) ** 2 * (1 - 2e-6) ** 2),
    {
        "ostinato": ostinato_weights,
        "ostinato/model": ostinato_model,
        "numpy": lambda: weights_case(descend, np.asarray, nothing),
        "jax": jax_weights,
    },
    tolerance=1e-6,
)


# -- chain ---------------------------------------------------------------------------------
def thousand() -> Numbers:
    return np.random.default_rng(7).random(1000, np.float32)


def chain(x: Any) -> Any:
    """100 operations; what comes out is again between 0 and 1."""
    for _ in range(10):
        y = x * 1.75
        y = y - 0.5
        y = -y
        y = y + 1.25
        y = y / 1.75
        y = y * 0.5
        y = y + 0.5
        y = y * y
        y = y - 0.25
        x = y / 0.75
    return x


CHAIN = Workload(
    "chain",
    "100 operations on 1,000 numbers, each on the result of the one before",
    lambda: functools.reduce(lambda x, _: chain(x), range(3), thousand()),
    everywhere(thousand, chain, 3),
    tolerance=1e-4,
)


# -- matvec --------------------------------------------------------------------------------
@functools.cache
def rotation() -> Numbers:
    """An orthogonal matrix, so that no iteration makes the vector longer or shorter."""
    q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((1000, 1000)))
    return np.ascontiguousarray(q, np.float32)


def matvec_numpy() -> Case:
    a = rotation()
    return numpy_case(thousand(), lambda x: a @ x, 10)


def product(a: Any, x: Any) -> Any:
    return a @ x


def matvec_ostinato() -> Case:
    import ostinato as ost

    a, compiled = ost.asarray(rotation()), ost.compile(product)
    return case(ost.asarray(thousand()), lambda x: compiled(a, x), nothing, np.asarray, 10)


def matvec_jax() -> Case:
    import jax

    a, compiled = jax.device_put(rotation()), jax.jit(product)
    return case(
        jax.device_put(thousand()),
        lambda x: compiled(a, x),
        lambda x: x.block_until_ready(),
        np.asarray,
        10,
    )


def matvec_torch() -> Case:
    import torch

    a, compiled = torch.from_numpy(rotation()), torch_compiled(product)
    x = torch.from_numpy(thousand())
    made = case(x, lambda x: compiled(a, x), nothing, np.asarray, 10)
    quiet: Any = torch.inference_mode()
    assert made.loop is not None
    return Case(quiet(made.answer), quiet(made.loop))


def matvec_dask(cluster: bool) -> Case:
    """The matrix in two blocks of rows, the vector in one."""
    import dask.array as da

    if cluster:
        from distributed import wait

        dask_client()
        a = da.from_array(rotation(), chunks=(500, 1000)).persist()
        wait(a)

        def turn(x: Any) -> Any:
            y = (a @ x).rechunk(1000).persist()
            wait(y)
            return y

        start = da.from_array(thousand()).persist()
        return case(start, turn, nothing, lambda x: x.compute(), 10)
    keep = dask_threads()
    a = da.from_array(rotation(), chunks=(500, 1000))
    start = da.from_array(thousand())
    return case(start, lambda x: keep((a @ x).rechunk(1000)), nothing, lambda x: x.compute(), 10)


def matvec_heat() -> Case:
    """The matrix split by rows; the product, split like it, is gathered for the next turn."""
    import heat as ht

    a = ht.array(rotation(), split=0)

    def turn(x: Any) -> Any:
        y = ht.matmul(a, x)
        y.resplit_(None)
        return y

    return case(ht.array(thousand()), turn, nothing, lambda x: x.numpy(), 10)


MATVEC = Workload(
    "matvec",
    "x = A @ x with A of 1000 x 1000 in float32",
    lambda: functools.reduce(lambda x, _: rotation() @ x, range(10), thousand()),
    {
        "ostinato": matvec_ostinato,
        "numpy": matvec_numpy,
        "jax": matvec_jax,
        "torch": matvec_torch,
        "dask/threads": lambda: matvec_dask(False),
        "dask/cluster": lambda: matvec_dask(True),
        "heat": matvec_heat,
    },
    tolerance=1e-4,
)


# -- eager ---------------------------------------------------------------------------------
ROWS = 32


@functools.cache
def rows_of(size: int) -> Numbers:
    return np.random.default_rng(5).standard_normal((ROWS, size), np.float32)


def eager_run(rows: Any, turns: int) -> Any:
    """A loop as one types it: a row and a rate that are others in each turn, and a test."""
    x = v = rows[0] * 0
    for k in range(turns):
        v = v * 0.9 + (rows[k % ROWS] - x) * (0.1 / (1 + k % 100))
        x = x + v
        if not float((v * v).sum()) < 1e9:
            break
    return x


def eager_case(library: str, size: int) -> Case:
    """Nothing is compiled by hand."""
    rows = import_module(library).asarray(rows_of(size))
    return Case(lambda: np.asarray(eager_run(rows, 8)), functools.partial(eager_run, rows))


def eager(name: str, size: int) -> Workload:
    return Workload(
        name,
        f"eight operations on {size:,} numbers, and a test, outside of compiled functions",
        lambda: eager_run(rows_of(size), 8),
        {
            system: functools.partial(eager_case, library, size)
            for system, library in (
                ("ostinato", "ostinato"),
                ("numpy", "numpy"),
                ("jax", "jax.numpy"),
            )
        },
        tolerance=1e-4,
    )


WORKLOADS = (NULL, WEIGHTS, CHAIN, MATVEC, eager("eager", 1000), eager("eager_large", 1 << 18))
