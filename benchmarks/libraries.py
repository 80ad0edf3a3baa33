"""One function in each library: the adapters of their names, and what makes a case of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .peers import ostinato_end, torch_compiled, torch_end, torch_host, torch_tensor
from .workload import Case, Numbers

Function = Callable[..., Any]  # (library, *operands) -> a result, or a tuple


def case(run: Function, operands: Sequence[Any], end: Function, host: Function) -> Case:
    """The same call again and again; `end` waits for the last result."""

    def loop(n: int) -> None:
        for _ in range(n):
            y = run(*operands)
        end(y)

    def answer() -> Any:
        y = run(*operands)
        parts = y if isinstance(y, tuple) else (y,)
        return together([host(p) for p in parts])

    return Case(answer, loop)


def together(parts: Sequence[Any]) -> Any:
    """Results as one; a single one is not copied, as it may be large."""
    found = [np.asarray(p) for p in parts]
    return found[0] if len(found) == 1 else np.concatenate([p.reshape(-1) for p in found])


def nothing(y: Any) -> None:
    pass


def ostinato_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import ostinato as ost

    given = [ost.asarray(x, copy=False) for x in operands]
    run = ost.compile(functools.partial(function, Ostinato(ost)))
    return case(run, given, ostinato_end, np.asarray)


class Updates:
    """Updates of arrays that do not change: by `at`."""

    def put(self, x: Any, key: Any, values: Any) -> Any:
        return x.at[key].set(values)


class Ostinato(Updates):
    """With the functions of networks among the others."""

    def __init__(self, ost: Any) -> None:
        self.ost = ost

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ost.nn if name == "softmax" else self.ost, name)

    def counted(self, x: Any, n: int) -> Any:
        return self.ost.bincount(x, length=n)

    def turns(self, count: int, step: Function, state: Any) -> Any:
        return self.ost.repeat(count, step, state)

    def rounds(self, start: Any, stop: Any, step: Function, state: Any) -> Any:
        ost = self.ost
        if isinstance(start, int) and isinstance(stop, int):
            numbers = ost.arange(start, stop)
            return ost.scan(lambda s, k: (step(k, s), None), state, numbers)[0]
        return ost.while_loop(
            lambda s: s[0] < stop, lambda s: (s[0] + 1, step(*s)), (ost.asarray(start), state)
        )[1]

    def tridiagonal(self, dl: Any, d: Any, du: Any, b: Any) -> Any:
        return self.ost.linalg.solve_tridiagonal(dl, d, du, b, axis=-1)

    def until(self, on: Function, step: Function, state: Any, most: int) -> Any:
        return self.ost.while_loop(on, step, state, most=most)


def jax_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    if any(x.dtype in (np.float64, np.complex128) for x in operands):  # else they are rounded
        jax.config.update("jax_enable_x64", True)
    given = [jax.device_put(x) for x in operands]
    run = jax.jit(functools.partial(function, Jax(jnp)))
    return case(run, given, jax.block_until_ready, np.asarray)


class Jax(Updates):
    """The few names that jax.numpy has elsewhere."""

    def __init__(self, jnp: Any) -> None:
        self.jnp = jnp

    def __getattr__(self, name: str) -> Any:
        import jax

        if name == "erf":
            return jax.scipy.special.erf
        if name == "one_hot":
            return lambda i, n: jax.nn.one_hot(i, n, dtype=self.jnp.float32)
        if name == "grad":
            return jax.grad
        if name == "softmax":
            return jax.nn.softmax
        if name == "scan":
            return jax.lax.scan
        return getattr(self.jnp, name)

    def counted(self, x: Any, n: int) -> Any:
        return self.jnp.bincount(x, length=n)

    def turns(self, count: int, step: Function, state: Any) -> Any:
        import jax

        return jax.lax.fori_loop(0, count, lambda _, s: step(s), state)

    def rounds(self, start: Any, stop: Any, step: Function, state: Any) -> Any:
        import jax

        return jax.lax.fori_loop(start, stop, step, state)

    def tridiagonal(self, dl: Any, d: Any, du: Any, b: Any) -> Any:
        import jax

        return jax.lax.linalg.tridiagonal_solve(dl, d, du, b.T).T

    def until(self, on: Function, step: Function, state: Any, most: int) -> Any:
        import jax

        def go_on(s: Any) -> Any:
            return on(s[0]) & (s[1] < most)

        return jax.lax.while_loop(go_on, lambda s: (step(s[0]), s[1] + 1), (state, 0))[0]


def torch_case(function: Function, operands: Sequence[Numbers], slopes: bool = False) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    run = torch_compiled(functools.partial(function, Torch(torch)))
    made = case(run, [torch_tensor(x) for x in operands], torch_end, torch_host)
    assert made.loop is not None
    quiet: Any = torch.no_grad() if slopes else torch.inference_mode()
    return Case(quiet(made.answer), quiet(made.loop))


class Torch:
    """PyTorch by NumPy's names."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def counted(self, x: Any, n: int) -> Any:
        return self.torch.bincount(x, minlength=n)

    def grad(self, function: Any) -> Any:
        return self.torch.func.grad(function)

    def softmax(self, x: Any, axis: int) -> Any:
        return self.torch.softmax(x, dim=axis)

    class maximum:
        """The larger ones; of all up to each."""

        def __new__(cls, x: Any, least: Any) -> Any:
            return x.clamp(min=least)

        @staticmethod
        def accumulate(x: Any, axis: int) -> Any:
            return x.cummax(dim=axis).values

    def max(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return self.torch.amax(x, dim=axis, keepdim=keepdims)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    def pad(self, x: Any, width: int, mode: str = "constant") -> Any:
        """All axes; edges are repeated by images, of which an array is one."""
        given = [width] * (2 * x.ndim)
        if mode == "constant":
            return self.torch.nn.functional.pad(x, given)
        return self.torch.nn.functional.pad(x[None, None], given, mode="replicate")[0, 0]

    def convolve(self, x: Any, w: Any, mode: str) -> Any:
        assert mode == "same"
        return self._correlated(x, w.flip(0), len(w) - 1)[(len(w) - 1) // 2 :][: len(x)]

    def correlate(self, x: Any, w: Any, mode: str) -> Any:
        assert mode == "valid"
        return self._correlated(x, w, 0)

    def _correlated(self, x: Any, w: Any, around: int) -> Any:
        conv = self.torch.nn.functional.conv1d
        return conv(x[None, None], w[None, None], padding=around)[0, 0]

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return x.sum() if axis is None else self.torch.sum(x, dim=axis, keepdim=keepdims)

    def std(self, x: Any, axis: int) -> Any:
        return self.torch.std(x, dim=axis, correction=0)

    def mean(self, x: Any, axis: int) -> Any:
        return self.torch.mean(x, dim=axis)

    def argmin(self, x: Any, axis: int) -> Any:
        return self.torch.argmin(x, dim=axis)

    def sort(self, x: Any, axis: int) -> Any:
        return self.torch.sort(x, dim=axis).values

    def one_hot(self, i: Any, n: int) -> Any:
        return self.torch.nn.functional.one_hot(i, n).to(self.torch.float32)


def cupy_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    run = functools.partial(function, CuPy(cupy))
    wait = cupy.cuda.get_current_stream().synchronize
    return case(run, [cupy.asarray(x) for x in operands], lambda _: wait(), cupy.asnumpy)


class CuPy:
    """CuPy, with what it has elsewhere."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cupy, name)

    def counted(self, x: Any, n: int) -> Any:
        return self.cupy.bincount(x, minlength=n)

    def softmax(self, x: Any, axis: int) -> Any:
        e = self.cupy.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def erf(self, x: Any) -> Any:
        from cupyx.scipy.special import erf  # type: ignore[import-not-found, unused-ignore]

        return erf(x)


class NumPy:
    """NumPy, with what it lacks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def counted(self, x: Any, n: int) -> Any:
        return np.bincount(x, minlength=n)

    def erf(self, x: Any) -> Any:
        from scipy.special import erf  # type: ignore[import-untyped, unused-ignore]

        return erf(x)

    def softmax(self, x: Any, axis: int) -> Any:
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def one_hot(self, i: Any, n: int) -> Any:
        return (i[:, None] == np.arange(n)).astype(np.float32)

    def turns(self, count: int, step: Function, state: Any) -> Any:
        for _ in range(count):
            state = step(state)
        return state

    def rounds(self, start: int, stop: int, step: Function, state: Any) -> Any:
        for k in range(start, stop):
            state = step(k, state)
        return state

    def put(self, x: Any, key: Any, values: Any) -> Any:
        """In place: the state is the loop's own."""
        x[key] = values
        return x

    def until(self, on: Function, step: Function, state: Any, most: int) -> Any:
        for _ in range(most):
            if not on(state):
                break
            state = step(state)
        return state

    def scan(self, step: Function, state: Any, xs: Any) -> Any:
        made = []
        for x in xs:
            state, y = step(state, x)
            made.append(y)
        return state, np.stack(made)


def everywhere(
    function: Function,
    operands: Callable[[], Sequence[Numbers]],
    in_steps: Function | None = None,
) -> dict[str, Any]:
    """The function in each library; where it takes slopes, NumPy's is written `in_steps`."""
    numpy = functools.partial(in_steps or function, NumPy())
    return {
        "ostinato": lambda: ostinato_case(function, operands()),
        "numpy": lambda: case(numpy, operands(), nothing, np.asarray),
        "jax": lambda: jax_case(function, operands()),
        "torch": lambda: torch_case(function, operands(), in_steps is not None),
    }
