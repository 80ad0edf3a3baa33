"""split="auto": arrays lie where the first compiled function that takes them works fastest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from tests.sessions import use


def step(weights: Any, x: Any, y: Any) -> Any:
    def loss(ws: Any) -> Any:
        return ((ost.tanh(x @ ws[0]) @ ws[1] - y) ** 2).mean()

    value, slopes = ost.value_and_grad(loss)(weights)
    return [w - 0.1 * s for w, s in zip(weights, slopes, strict=True)], value


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("f4") * 0.1


def trained(rows: int, wide: int, split: Any) -> tuple[Any, Any, Any]:
    weights = [ost.asarray(numbers(wide, wide), split=split) for _ in range(2)]
    x, y = (ost.asarray(numbers(rows, wide), split=split) for _ in range(2))
    f = ost.compile(step)
    for _ in range(3):
        weights, value = f(weights, x, y)
    return f, (*weights, x), value


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize(("rows", "wide"), [(600, 16), (16, 200)])
def test_the_same_values_wherever_arrays_lie(mesh: tuple[int, ...], rows: int, wide: int) -> None:
    found = []
    for where, split in ((mesh, "auto"), ((1,), None)):
        with use(where):
            _, arrays, value = trained(rows, wide, split)
            found.append([np.asarray(a) for a in (*arrays, value)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_many_rows_are_cut_by_rows_and_large_weights_too() -> None:
    with use((2,)):
        f, arrays, _ = trained(4096, 16, "auto")
        assert [a.split for a in arrays] == [None, None, 0]
        assert facts(f.plan)["collectives"].keys() == {"all_reduce"}
        assert (len(f.misses), f.hits) == (1, 2), "the state comes back as it lies"
        f, arrays, _ = trained(16, 512, "auto")
        up, down, x = arrays
        assert None not in (up.split, down.split)
        assert x.split is None
        assert facts(f.plan)["sent"] < 512 * 512, "weights stay where they are"
        assert (len(f.misses), f.hits) == (1, 2)


def test_nothing_is_brought_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with use((2,)) as session:
        brought: list[Any] = []
        put = type(session).put
        monkeypatch.setattr(
            type(session),
            "put",
            lambda s, v, split=None: brought.append(v.shape) or put(s, v, split),
        )
        trained(64, 32, "auto")
        large = [shape for shape in brought if len(shape) == 2]
        assert sorted(large) == [(32, 32), (32, 32), (64, 32), (64, 32)]


def test_where_memory_is_short_state_is_cut() -> None:
    specs = [ost.spec((2048, 2048), split="auto") for _ in range(2)]
    rows = ost.spec((131_072, 2048), split=0)
    much = 10**12  # a limit, so that both save memory where it costs nothing
    wide = ost.plan(step, specs, rows, rows, mesh=16, machine="h200-ib", memory_limit=much)
    limit = wide.peak_bytes * 4 // 5
    tight = ost.plan(step, specs, rows, rows, mesh=16, machine="h200-ib", memory_limit=limit)
    assert [s.layout.is_whole for s in wide.traced.inputs[:2] if s.layout] == [True, True]
    assert [s.layout.is_whole for s in tight.traced.inputs[:2] if s.layout] == [False, False]
    assert tight.peak_bytes <= limit


def deep(ws: Any, x: Any, y: Any) -> Any:
    def loss(ws: Any) -> Any:
        z = x
        for w in ws:
            z = ost.nn.gelu(ost.nn.layer_norm(z @ w))
        return ost.nn.mse_loss(z, y)

    value, slopes = ost.value_and_grad(loss)(ws)
    return ost.tree_map(lambda w, g: w - 0.1 * g, ws, slopes), value


def test_state_is_cut_only_where_nothing_else_is_cheaper() -> None:
    rows = ost.spec((65536, 1024), split=0)

    def planned(split: Any, limit: int | None = None) -> Any:
        ws = [ost.spec((1024, 1024), split=split) for _ in range(6)]
        return ost.plan(deep, ws, rows, rows, mesh=8, machine="h200-ib", memory_limit=limit)

    def cut(plan: Any) -> set[bool]:
        return {not s.layout.is_whole for s in plan.traced.inputs[:6]}

    wide = planned("auto")
    tight, tighter = (
        planned("auto", wide.peak_bytes - int(wide.arena_bytes * share)) for share in (0.2, 0.7)
    )
    assert cut(wide) == {False}
    assert "made again" in [r.how for r in tight.ladder]
    assert cut(tight) == cut(tighter) == {True}
    whole = planned(None, tight.target.memory_limit)
    assert tight.simulate().seconds < whole.simulate().seconds
    for plan in (tight, tighter):
        limit = plan.target.memory_limit
        assert plan.peak_bytes <= limit
        by_hand = planned(0, limit)
        assert plan.simulate().seconds <= by_hand.simulate().seconds


def test_what_is_used_before_is_cut_along_its_longest_axis() -> None:
    with use((2,)):
        x = ost.asarray(numbers(4, 50), split="auto")
        y = x * 2
        np.testing.assert_array_equal(np.asarray(y), numbers(4, 50) * 2)
        assert x.split == 1


def test_makers_take_it_too_and_within_functions_it_says_nothing() -> None:
    with use((2,)):
        f = ost.compile(lambda x, y: (x + y + ost.ones((6, 4), split="auto")).sum())
        x = ost.zeros((6, 4), split="auto")
        y = ost.random.normal((6, 4), seed=1, split="auto")
        assert float(f(x, y)) == pytest.approx(float(np.asarray(y).sum()) + 24)
    with use((1,)):
        assert float(ost.asarray([1.0, 2.0], split="auto").sum()) == 3.0


def test_a_file_may_lie_anywhere(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", numbers(40, 6))
    with use((2,)):
        for resident in (True, False):
            x = ost.load(tmp_path / "x.npy", split="auto", resident=resident)
            f = ost.compile(lambda x: x.sum(0))
            np.testing.assert_allclose(np.asarray(f(x)), numbers(40, 6).sum(0), rtol=1e-5)


def test_other_words_are_refused() -> None:
    with pytest.raises(ost.errors.LayoutError, match="split='rows'"):
        ost.asarray(numbers(4, 4), split="rows")
    with pytest.raises(ost.errors.LayoutError, match="split='auto'"):
        ost.ones((4, 4)).resplit("auto")
