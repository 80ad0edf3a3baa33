"""Random numbers: their distributions, and that they depend on the seed, the stream and the place
in the array alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.ops.random.draws import STREAMS
from ostinato.ops.random.seeds import mix, seeds

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, LayoutError, ShapeError
from tests.helpers import assert_same, compare_all, on

N = 40_000
FLOATS = ("float16", "bfloat16", "float32", "float64")


def drawn(x: Any) -> np.ndarray[Any, Any]:
    with on(1):
        return np.asarray(x).astype(np.float64)


def far(values: np.ndarray[Any, Any], distribution: Callable[[Any], Any]) -> float:
    """Kolmogorov's distance to a distribution, in units of what chance explains."""
    x = np.sort(values)
    return float(np.abs(np.arange(1, x.size + 1) / x.size - distribution(x)).max()) * x.size**0.5


# -- distributions -------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = drawn(ost.random.uniform((N,), dtype=dtype, seed=1))
    assert 0 <= x.min() < x.max() < 1
    assert far(x, lambda v: v) < 1.6 + (0.004 * N**0.5 if dtype == "bfloat16" else 0)
    assert abs(x.mean() - 0.5) < 4 / math.sqrt(12 * N) + (0.002 if dtype == "bfloat16" else 0)
    y = drawn(ost.random.uniform((N,), low=-3, high=5.0, dtype=dtype, seed=1))
    assert -3 <= y.min() < -2.9
    assert 4.9 < y.max() < 5
    bounds = ost.random.uniform((N,), low=ost.asarray(1.0), high=ost.asarray(2.0), dtype=dtype)
    assert drawn(bounds).max() < 2
    assert bounds.dtype == ost.zeros(1, dtype=dtype).dtype


def test_uniform_never_reaches_its_upper_end():
    """Rounding would: 1 + (1 - 2^-24) is 2 in float32."""
    for dtype in ("float16", "bfloat16"):
        x = drawn(ost.random.uniform((N,), low=1.0, high=2.0, dtype=dtype, seed=2))
        assert x.max() < 2
        assert x.max() == float(np.nextafter(*np.array([2, 1], ost.zeros(1, dtype=dtype).dtype)))


def _phi(x: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    x = drawn(ost.random.normal((N,), dtype=dtype, seed=3))
    assert far(x, _phi) < 1.6 + (0.5 if dtype == "bfloat16" else 0)
    assert abs(x.mean()) < 4 / math.sqrt(N)
    assert abs(x.std() - 1) < 4 / math.sqrt(2 * N)
    assert abs((x[0::2] * x[1::2]).mean()) < 4 / math.sqrt(N / 2)  # the two of one pair
    assert np.abs(x).max() > 3.5
    y = ost.random.normal((N,), mean=2.0, std=0.5, dtype=dtype, seed=3)
    assert y.dtype == ost.zeros(1, dtype=dtype).dtype
    np.testing.assert_allclose(drawn(y), x * 0.5 + 2, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64"] + [f"uint{8 << k}" for k in range(4)]
)
def test_integers(dtype):
    limits = np.iinfo(dtype)
    for low, high in (
        (0, 10),
        (limits.min, int(limits.max) + 1),
        (limits.max - 2, int(limits.max) + 1),
    ):
        x = ost.random.integers(low, high, (N,), dtype=dtype, seed=4)
        values = np.asarray(x)
        assert values.dtype == dtype
        whole = [int(v) for v in (values.min(), values.max())]
        assert low <= whole[0]
        assert whole[1] < high
        if high - low <= 256:
            counts = np.bincount(
                (values.astype(np.int64) - low)
                if dtype != "uint64"
                else (values - np.uint64(low)).astype(np.int64),
                minlength=high - low,
            )
            expected = N / (high - low)
            assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)
        else:
            assert (
                abs(float(np.mean((values.astype(np.float64) - low) / (high - low))) - 0.5) < 0.01
            )


def test_negative_integers():
    values = np.asarray(ost.random.integers(-5, -2, (999,), seed=0))
    assert sorted(set(values.tolist())) == [-5, -4, -3]


def test_bits():
    """Each bit of a word is set half of the time, and no two go together."""
    for dtype, size in ((np.float32, 24), (np.float64, 53)):
        x = np.asarray(ost.random.uniform((N,), dtype=dtype, seed=5))
        words = (x * 2.0**size).astype(np.int64)
        bits = (words[:, None] >> np.arange(size)) & 1
        assert np.abs(bits.mean(0) - 0.5).max() < 4.5 / (2 * math.sqrt(N))
        together = np.corrcoef(bits[:, ::7].T)
        assert np.abs(together - np.eye(len(together))).max() < 5 / math.sqrt(N)


def test_bernoulli():
    for p in (0.0, 0.1, 0.5, 1.0):
        x = ost.random.bernoulli(p, (N,), seed=6)
        assert x.dtype == ost.bool
        assert abs(drawn(x).mean() - p) <= 4 * math.sqrt(p * (1 - p) / N)
    p = np.array([0.0, 1.0, 0.5])
    assert np.asarray(ost.random.bernoulli(p, seed=6))[:2].tolist() == [False, True]
    assert ost.random.bernoulli(p, (5, 3), seed=6).shape == (5, 3)


def test_categorical():
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    for dtype in ("float16", "float32", "float64"):
        x = np.asarray(ost.random.categorical(ost.asarray(logits, dtype=dtype), shape=(N,), seed=7))
        assert x.dtype == np.int64
        np.testing.assert_allclose(np.bincount(x) / N, [0.1, 0.2, 0.7], atol=0.01)
    rows = ost.asarray([[0.0, -np.inf], [-np.inf, 0.0]])
    assert np.asarray(ost.random.categorical(rows, seed=1)).tolist() == [0, 1]
    assert np.asarray(ost.random.categorical(rows, axis=0, seed=1)).tolist() == [0, 1]


def test_permutation():
    for n in (0, 1, 2, 1000):
        order = np.asarray(ost.random.permutation(n, seed=8))
        assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() != list(range(1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15
    x = np.arange(12).reshape(4, 3)
    rows = np.asarray(ost.random.permutation(x, seed=8))
    assert sorted(rows.tolist()) == x.tolist()
    columns = np.asarray(ost.random.shuffle(x, axis=1, seed=8))
    assert sorted(columns.T.tolist()) == x.T.tolist()
    counts = np.zeros((3, 3))
    for seed in range(300):
        counts[np.arange(3), np.asarray(ost.random.permutation(3, seed=seed))] += 1
    assert np.abs(counts - 100).max() < 40  # each anywhere


def test_dropout_of_what_shares_its_fate():
    """Along some axes all or none; whole channels, however they lie; the same on any workers."""
    x = np.random.default_rng(3).normal(size=(6, 5, 4, 3)) + 9
    for shared in ((2, 3), 1, -1, (0, 2)):
        kept = np.asarray(ost.nn.dropout(x, 0.5, seed=2, shared=shared)) != 0
        axes = shared if isinstance(shared, tuple) else (shared,)
        np.testing.assert_array_equal(kept.all(axes), kept.any(axes))
        assert 0.2 < kept.mean() < 0.8
    first = np.asarray(ost.nn.spatial_dropout(x, 0.5, seed=2))
    np.testing.assert_array_equal(first, ost.nn.dropout(x, 0.5, seed=2, shared=(2, 3)))
    last = np.asarray(ost.nn.spatial_dropout(x, 0.5, seed=2, layout="NHWC"))
    np.testing.assert_array_equal(last, ost.nn.dropout(x, 0.5, seed=2, shared=(1, 2)))
    assert_same(lambda x: ost.nn.spatial_dropout(x, 0.5, seed=2), lambda x: first, x, few=True)


def test_dropout():
    x = np.ones(N)
    y = drawn(ost.nn.dropout(x, 0.25, seed=9))
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.01
    assert abs(y.mean() - 1) < 0.01
    assert np.asarray(ost.nn.dropout(x, 0.0, seed=9)).tolist() == x.tolist()
    assert ost.nn.dropout(ost.ones(3, dtype=ost.bfloat16), 0.5).dtype == ost.bfloat16
    g = np.asarray(ost.grad(lambda x: ost.sum(ost.nn.dropout(x, 0.25, seed=9)))(ost.asarray(x)))
    np.testing.assert_array_equal(g, y)


# -- what they depend on -------------------------------------------------------------------
DRAWS: dict[str, Callable[..., Any]] = {
    "uniform": lambda s: ost.random.uniform((7, 6), seed=s),
    "uniform64": lambda s: ost.random.uniform((7, 6), dtype=ost.float64, seed=s),
    "half": lambda s: ost.random.uniform((7, 6), dtype=ost.float16, low=-1, high=2, seed=s),
    "normal": lambda s: ost.random.normal((7, 6), seed=s),
    "normal64": lambda s: ost.random.normal((7, 3, 2), dtype=ost.float64, seed=s),
    "integers": lambda s: ost.random.integers(0, 1000, (7, 6), seed=s),
    "bernoulli": lambda s: ost.random.bernoulli(0.5, (7, 6), seed=s),
    "permutation": lambda s: ost.random.permutation(13, seed=s),
    "categorical": lambda s: ost.random.categorical(ost.zeros((7, 4)), seed=s),
    "dropout": lambda s: ost.nn.dropout(ost.ones((7, 6)), seed=s),
}


@pytest.mark.parametrize("name", DRAWS)
def test_same_bits_in_any_layout(name):
    draw = DRAWS[name]
    with on(1):
        wanted = np.asarray(draw(11))
        assert np.asarray(draw(11)).tobytes() == wanted.tobytes()
        assert np.asarray(draw(12)).tobytes() != wanted.tobytes()
    assert_same(lambda: draw(11), lambda: wanted, rtol=0, atol=0)
    assert_same(lambda s: draw(s), lambda s: wanted, np.int64(11), rtol=0, atol=0)
    for mesh, split in (((3,), 0), ((3,), 1), ((2, 2), (0, 1)), ((2, 2), (1, 0)), ((2, 2), (0, 0))):
        with on(mesh=mesh):
            if name in ("uniform", "normal", "integers", "bernoulli"):
                made = {
                    "uniform": lambda sp: ost.random.uniform((7, 6), seed=11, split=sp),
                    "normal": lambda sp: ost.random.normal((7, 6), seed=11, split=sp),
                    "integers": lambda sp: ost.random.integers(0, 1000, (7, 6), seed=11, split=sp),
                    "bernoulli": lambda sp: ost.random.bernoulli(0.5, (7, 6), seed=11, split=sp),
                }[name](split)
                assert made.layout.splits == (split if isinstance(split, tuple) else (split,))
                assert np.asarray(made).tobytes() == wanted.tobytes()


def test_the_shape_does_not_matter():
    for draw in (ost.random.uniform, ost.random.normal):
        for dtype in (ost.float32, ost.float64):
            line = np.asarray(draw((60,), dtype=dtype, seed=1))
            cube = np.asarray(draw((3, 4, 5), dtype=dtype, seed=1))
            assert line.tobytes() == cube.tobytes()
            assert np.asarray(draw((7,), dtype=dtype, seed=1)).tobytes() == line[:7].tobytes()


def test_many_chunks():
    """Numbers come in chunks that no one should see."""
    for dtype in (ost.float32, ost.float64):
        for draw in (ost.random.uniform, ost.random.normal):
            long = np.asarray(draw((150_001,), dtype=dtype, seed=1))
            with on(3):
                assert (
                    np.asarray(draw((150_001,), dtype=dtype, seed=1, split=0)).tobytes()
                    == long.tobytes()
                )
            assert len(np.unique(long)) > 0.98 * 150_001


def test_streams_are_apart():
    """One seed, different functions: no relation. Different seeds: none either."""
    assert len(set(STREAMS.values())) == len(STREAMS)
    lines = [
        drawn(ost.random.uniform((N,), seed=1, dtype=ost.float64)),
        drawn(ost.random.uniform((N,), seed=2, dtype=ost.float64)),
        drawn(ost.random.normal((N,), seed=1, dtype=ost.float64)),
        drawn(ost.random.integers(0, 2**31, (N,), seed=1)),
        drawn(ost.random.bernoulli(0.5, (N,), seed=1)),
        drawn(ost.random.permutation(N, seed=1)),
        drawn(ost.nn.dropout(np.ones(N), seed=1)),
    ]
    together = np.corrcoef(np.array(lines))
    assert np.abs(together - np.eye(len(lines))).max() < 4.5 / math.sqrt(N)


def test_mix_spreads():
    made = {mix(base, count) for base in range(30) for count in range(30)}
    assert len(made) == 900
    assert all(0 <= s < 2**64 for s in made)


# -- seeds that nobody names ---------------------------------------------------------------
def test_each_draw_is_another():
    ost.random.seed(5)
    first = [np.asarray(ost.random.uniform((4,))) for _ in range(3)]
    assert len({x.tobytes() for x in first}) == 3
    ost.random.seed(5)
    again = [np.asarray(ost.random.uniform((4,))) for _ in range(3)]
    compare_all([ost.asarray(x) for x in again], first, "again", 0, 0)
    ost.random.seed(6)
    assert np.asarray(ost.random.uniform((4,))).tobytes() != first[0].tobytes()


def test_each_call_of_a_compiled_function_draws_anew():
    noisy = ost.compile(lambda x: (x + ost.random.uniform((3,)), x + ost.random.uniform((3,))))
    x = ost.zeros(3, dtype=ost.float32)
    ost.random.seed(5)
    first = [np.asarray(y) for _ in range(3) for y in noisy(x)]
    assert len({y.tobytes() for y in first}) == 6
    plans = len(noisy.misses)
    ost.random.seed(5)
    assert [y.tobytes() for y in first] == [
        np.asarray(y).tobytes() for _ in range(3) for y in noisy(x)
    ]
    assert len(noisy.misses) == plans == 1
    with on(3):
        ost.random.seed(5)
        assert np.asarray(noisy(x)[0]).tobytes() == first[0].tobytes()


def test_each_turn_of_a_loop_draws_anew():
    def turn(s, _):
        y = ost.random.uniform((2,))
        return s + 1, (y, ost.random.normal(()))

    walk = ost.compile(lambda s: ost.scan(turn, s, length=5)[1])
    for run in (walk, lambda s: ost.scan(turn, s, length=5)[1]):
        ys, zs = run(ost.asarray(0))
        assert len({y.tobytes() for y in np.asarray(ys)}) == 5
        assert len(set(np.asarray(zs).tolist())) == 5
    ost.random.seed(1)
    first = np.asarray(walk(ost.asarray(0))[0])
    with on(3):
        ost.random.seed(1)
        assert np.asarray(walk(ost.asarray(0))[0]).tobytes() == first.tobytes()


def test_turns_of_nested_loops_draw_apart():
    """No turn of one loop makes up for one of the other, and each is its seed's own to the bit."""

    def inner(s, _):
        return s, (ost.random.uniform((2,)), ost.random.normal((2,)))

    def outer(s, _):
        return s, (ost.random.uniform((2,)), ost.scan(inner, s, length=4)[1])

    def walk(s):
        return ost.scan(outer, s, length=5)[1]

    for run in (walk, ost.compile(walk)):
        ost.random.seed(1)
        rows, inside = run(ost.asarray(0))
        for numbers in (*inside, rows):
            pairs = np.asarray(numbers).reshape(-1, 2)
            assert len({p.tobytes() for p in pairs}) == len(pairs)
        with on(3):
            ost.random.seed(1)
            again = run(ost.asarray(0))[1]
            assert [np.asarray(x).tobytes() for x in again] == [
                np.asarray(x).tobytes() for x in inside
            ]
    ost.random.seed(1)
    found = np.asarray(walk(ost.asarray(0))[0])
    ost.random.seed(1)
    base = seeds.advance()
    for k in range(5):
        wanted = ost.random.uniform((2,), seed=ost.random.fold(base, k))
        assert np.asarray(wanted).tobytes() == found[k].tobytes()


def test_gradients_see_the_numbers_that_were_drawn():
    """A loop that is run again for its gradient draws the same numbers again."""

    def f(x):
        s, ys = ost.scan(lambda s, _: (s * ost.random.normal((3,)), s), x, length=3)
        return ost.sum(s), ys

    ost.random.seed(2)
    _, g = ost.value_and_grad(f, has_aux=True)(ost.ones(3, dtype=ost.float32))
    ost.random.seed(2)
    last = np.asarray(
        ost.scan(lambda s, _: (s * ost.random.normal((3,)), s), ost.ones(3), length=3)[0]
    )
    np.testing.assert_allclose(np.asarray(g), last, rtol=1e-5)
    noisy = ost.checkpoint(lambda x: x * ost.random.normal((3,)))
    y, back = ost.vjp(noisy, ost.ones(3, dtype=ost.float32))
    np.testing.assert_allclose(np.asarray(back(ost.ones(3))[0]), np.asarray(y), rtol=1e-6)


def test_a_seed_of_ones_own():
    """A seed is an operand: another one is no other plan."""
    draw = ost.compile(lambda seed: ost.random.normal((4,), seed=seed))
    first, second = np.asarray(draw(1)), np.asarray(draw(2))
    assert first.tobytes() != second.tobytes()
    assert len(draw.misses) == 1
    assert np.asarray(ost.random.normal((4,), seed=1)).tobytes() == first.tobytes()
    assert (
        np.asarray(ost.random.normal((4,), seed=-1)).tobytes()
        == np.asarray(ost.random.normal((4,), seed=np.int64(-1))).tobytes()
    )


def test_a_limit_that_changes_is_no_other_plan():
    draw = ost.compile(lambda a: ost.random.uniform((4,), low=-a, high=a, seed=1))
    assert np.abs(np.asarray(draw(2.0))).max() > np.abs(np.asarray(draw(1.0))).max()
    assert len(draw.misses) == 1


# -- what is wrong -------------------------------------------------------------------------
WRONG = [
    (
        lambda: ost.random.uniform((2,), dtype=int),
        DTypeError,
        "random numbers.*needed a real float",
    ),
    (lambda: ost.random.normal((-1,)), ArgumentError, r"shape.*\(-1,\)"),
    (lambda: ost.random.uniform((2,), low=2, high=1), ArgumentError, r"uniform.*\[2, 1\); needed"),
    (lambda: ost.random.integers(5, 5), ArgumentError, r"integers.*\[5, 5\) in int64; needed low"),
    (lambda: ost.random.integers(0, 300, dtype="int8"), ArgumentError, "both within the dtype"),
    (lambda: ost.random.integers(0, 2, dtype=float), DTypeError, "integers.*an integer dtype"),
    (lambda: ost.random.uniform((2,), seed=1.5), ArgumentError, "seed.*needed one whole number"),
    (lambda: ost.random.uniform((2,), seed=np.arange(2)), ArgumentError, r"seed.*int64\[2\]"),
    (lambda: ost.random.categorical(np.arange(3)), DTypeError, "categorical.*real floating logits"),
    (
        lambda: ost.random.categorical(np.ones((2, 3)), shape=(3,)),
        ShapeError,
        r"categorical.*\(3,\)",
    ),
    (lambda: ost.random.uniform((2,), split=1), LayoutError, "split=1 .*an array with 1 axes"),
    (lambda: ost.nn.dropout(np.ones(2), 1.0), ArgumentError, "dropout.*rate 1.0; needed 0 <= rate"),
    (lambda: ost.nn.dropout(np.arange(2)), DTypeError, "dropout.*int64; needed a floating"),
    (
        lambda: ost.while_loop(lambda s: s < 3, lambda s: s + ost.random.uniform(()), 0.0),
        ArgumentError,
        "random numbers in while_loop.*needed a seed of their own.*pass seed=",
    ),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run, error, text):
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_random.py:{run.__code__.co_firstlineno}" in str(caught.value) or "while" in text


def test_draws_one_by_one_reach_results_with_gaps() -> None:
    places = np.arange(12).reshape(4, 3)
    for name, operands in (("normal64", ()), ("gamma_draw", (np.array(2.0),))):
        given = (np.array(7, np.uint64), places, *operands)
        whole, gaps = np.zeros((4, 3)), np.zeros((4, 6))[:, :3]
        OPS[name].kernel(np, whole, *given)
        OPS[name].kernel(np, gaps, *given)
        assert whole.any()
        assert (gaps == whole).all(), name
