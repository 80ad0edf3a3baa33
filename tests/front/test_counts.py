"""A number among the arguments of a compiled function that decides a shape, an extent or an axis: found
wherever functions take one, and traced again with its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.sessions import use

x = np.arange(24.0).reshape(4, 6)
v = np.arange(1.0, 7.0)
sq = np.arange(16.0).reshape(4, 4) + np.eye(4) * 3
i64 = np.array([0, 1, 2, 1])
CALLS: list[Callable[[Any], Any]] = [
    lambda n: ost.histogram(v, n)[0],
    lambda n: ost.histogram(v, bins=n)[0],
    lambda n: ost.histogram(v, 4, range=(0, n))[0],
    lambda n: ost.histogram2d(v, v, n)[0],
    lambda n: ost.histogramdd(ost.asarray(x.T[:, :2].copy()), n)[0],
    lambda n: ost.bincount(ost.asarray(i64), length=n + 4),
    lambda n: ost.bincount(ost.asarray(i64), minlength=n + 4),
    lambda n: ost.histogram_bin_edges(v, n),
    lambda n: ost.linspace(0, 1, n),
    lambda n: ost.geomspace(1, 2, n),
    lambda n: ost.linspace(0.0, 1.0, num=n),
    lambda n: ost.zeros(n),
    lambda n: ost.zeros((n, n)),
    lambda n: ost.ones(n),
    lambda n: ost.full(n, 2.0),
    lambda n: ost.full((n, 2), 1),
    lambda n: ost.arange(n),
    lambda n: ost.arange(1, n),
    lambda n: ost.arange(0, 10, n),
    lambda n: ost.eye(n),
    lambda n: ost.eye(n, n),
    lambda n: ost.eye(4, k=n),
    lambda n: ost.identity(n),
    lambda n: ost.tri(n),
    lambda n: ost.tri(4, k=n),
    lambda n: ost.reshape(x, (n, -1)),
    lambda n: ost.asarray(x).reshape(n, -1),
    lambda n: ost.broadcast_to(v, (n, 6)),
    lambda n: ost.tile(v, n),
    lambda n: ost.tile(v, (n, 2)),
    lambda n: ost.roll(v, n),
    lambda n: ost.rot90(x, n),
    lambda n: ost.diag(sq, n),
    lambda n: ost.diag(v, n),
    lambda n: ost.diagonal(sq, n),
    lambda n: ost.trace(sq, n),
    lambda n: ost.tril(sq, n),
    lambda n: ost.triu(sq, k=n),
    lambda n: ost.diagflat(v, n),
    lambda n: ost.split(v, n),
    lambda n: ost.array_split(v, n),
    lambda n: ost.hsplit(x, n),
    lambda n: ost.vsplit(x, n),
    lambda n: ost.pad(v, n),
    lambda n: ost.pad(v, (n, 1)),
    lambda n: ost.pad(v, 1, constant_values=n),
    lambda n: ost.diff(v, n),
    lambda n: ost.take(v, n),
    lambda n: ost.asarray(v)[n],
    lambda n: ost.asarray(v)[:n],
    lambda n: ost.asarray(v)[n:],
    lambda n: ost.asarray(v)[::n],
    lambda n: ost.sum(x, axis=n - 2),
    lambda n: ost.swapaxes(x, 0, n - 1),
    lambda n: ost.moveaxis(x, 0, n - 1),
    lambda n: ost.expand_dims(x, n),
    lambda n: ost.concat([x, x], axis=n - 2),
    lambda n: ost.stack([x, x], axis=n),
    lambda n: ost.squeeze(ost.ones((2, 2, 1)), n),
    lambda n: ost.vander(v, n),
    lambda n: ost.linalg.matrix_power(sq, n),
    lambda n: ost.linalg.norm(v, n),
    lambda n: ost.fft.fft(v, n),
    lambda n: ost.fft.rfft(v, n),
    lambda n: ost.fft.fftfreq(n),
    lambda n: ost.fft.rfftfreq(n),
    lambda n: ost.fft.fft2(x, (n, n)),
    lambda n: ost.fft.irfft(v, n),
    lambda n: ost.nonzero(v, size=n)[0],
    lambda n: ost.unique_values(v, size=n),
    lambda n: ost.argwhere(v, size=n),
    lambda n: ost.flatnonzero(v, size=n),
    lambda n: ost.nn.one_hot(ost.asarray(i64), n + 1),
    lambda n: ost.segment_sum(ost.asarray(i64), ost.asarray(i64), num_segments=n + 1),
    lambda n: ost.partition(v, n),
    lambda n: ost.argpartition(v, n),
    lambda n: ost.random.normal((n,), seed=1),
    lambda n: ost.random.uniform((n, 2), seed=1),
    lambda n: ost.random.integers(0, 5, (n,), seed=1),
    lambda n: ost.random.permutation(n, seed=1),
    lambda n: ost.random.choice(v, (n,), seed=1),
    lambda n: ost.quantile(v, n / 10),
    lambda n: ost.convolve(v, ost.ones(n)),
    lambda n: ost.sliding_window_view(v, n),
    lambda n: ost.bartlett(n),
    lambda n: ost.hanning(n),
    lambda n: ost.hamming(n),
    lambda n: ost.blackman(n),
    lambda n: ost.kaiser(n, 2.0),
    lambda n: ost.indices((n, 2)),
    lambda n: ost.meshgrid(ost.arange(n), ost.arange(2))[0],
    lambda n: ost.unravel_index(n, (4, 6)),
    lambda n: ost.ravel_multi_index((1, n), (4, 6)),
    lambda n: ost.insert(v, n, 3.0),
    lambda n: ost.delete(v, n),
    lambda n: ost.tensordot(sq, sq, n),
    lambda n: ost.cumsum(x, axis=n - 2),
    lambda n: ost.sort(x, axis=n - 2),
    lambda n: ost.std(v, ddof=n),
    lambda n: ost.var(v, correction=n),
    lambda n: ost.round(v, n),
    lambda n: ost.ldexp(v, n),
    lambda n: ost.polyfit(v, v, n),
    lambda n: ost.polyval(v, n),
    lambda n: ost.interp(n, v, v),
    lambda n: ost.clip(v, 0, n),
    lambda n: ost.repeat(n, lambda s: s * 2, 1.0),
    lambda n: ost.linalg.toeplitz(ost.arange(n)),
    lambda n: ost.special.factorial(n),
    lambda n: ost.special.comb(5, n),
    lambda n: ost.gradient(v, n),
    lambda n: ost.trapezoid(v, dx=n),
    lambda n: ost.unstack(x, axis=n - 2),
    lambda n: ost.isclose(v, n),
    lambda n: ost.digitize(n, v),
    lambda n: ost.searchsorted(v, n),
    lambda n: ost.bitwise_left_shift(ost.asarray(i64), n),
    lambda n: ost.fromfunction(lambda i, j: i + j, (n, 2)),
    lambda n: ost.asarray(v).at[n].set(0.0),
    lambda n: ost.asarray(v).at[:n].set(0.0),
    lambda n: ost.cov(x, ddof=n),
    lambda n: ost.special.logsumexp(x, axis=n - 2),
    lambda n: ost.nn.softmax(x, axis=n - 2),
    lambda n: ost.percentile(v, n),
    lambda n: ost.nan_to_num(v, nan=n),
    lambda n: ost.apply_along_axis(lambda r: r.sum(), n - 2, x),
    lambda n: ost.histogram(v, n, weights=v)[0],
    lambda n: ost.histogram(v, n, density=True)[0],
    lambda n: ost.histogram(v, n, (0.0, 3.0))[0],
    lambda n: ost.histogram(v, n, (0.0, v.max()))[0],
    lambda n: ost.fft.fftshift(x, n - 2),
    lambda n: ost.flip(x, n - 2),
    lambda n: ost.argmax(x, n - 2),
    lambda n: ost.count_nonzero(x, axis=n - 2),
    lambda n: ost.select([v > n], [v], n),
    lambda n: ost.kron(ost.eye(n), ost.ones((2, 2))),
    lambda n: ost.array([n, 2 * n]),
    lambda n: ost.asarray([[n, 1], [2, n]]),
    lambda n: ost.full_like(v, n),
    lambda n: ost.tril_indices(n)[0],
    lambda n: ost.triu_indices(n, 1)[0],
    lambda n: ost.diag_indices(n)[0],
    lambda n: ost.tril_indices(4, n)[0],
    lambda n: np.repeat(ost.asarray(v), n),
    lambda n: ost.gradient(x, axis=n - 2),
    lambda n: ost.average(x, axis=n - 2, weights=x[0] if n == 3 else x[:, 0]),
    lambda n: ost.linalg.norm(x, axis=n - 2),
    lambda n: sum(ost.asarray(v)[k] for k in range(n)),
]


@pytest.fixture(autouse=True)
def _one_worker() -> Iterator[None]:
    with use():
        yield


def leaves(made: Any) -> list[Any]:
    if isinstance(made, (tuple, list)):
        return [y for z in made for y in leaves(z)]
    return [np.asarray(made)]


@pytest.mark.parametrize("n", [2, 3])
def test_counts_are_found(n: int) -> None:
    """What a call gives or refuses is what it gives or refuses outside of compiled functions."""
    for number, call in enumerate(CALLS):
        where = f"call {number}"
        try:
            wanted = leaves(call(n))
        except Exception as error:
            with pytest.raises(type(error)):
                leaves(ost.compile(lambda n, call=call: call(n))(n))
            continue
        made = leaves(ost.compile(lambda n, call=call: call(n))(n))
        for got, want in zip(made, wanted, strict=True):
            np.testing.assert_allclose(got, want, err_msg=where)
            assert got.dtype == want.dtype, where
