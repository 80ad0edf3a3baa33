"""Optimizers: PyTorch's numbers, and those of a dozen lines of NumPy; state as parameters lie; few kernels."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import bfloat16
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import on

optim = ost.optim


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(0, 1, shape).astype(dtype)


def tree(seed: int = 0, dtype: Any = np.float64) -> dict[str, Any]:
    return {"b": numbers(5, seed=seed, dtype=dtype), "w": [numbers(4, 5, seed=seed, dtype=dtype)]}


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in flatten(tree)[0]]


# -- references: a leaf's parameter, gradient and state, at step t from 1 on -------------------
def adam(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    if not o.decoupled:
        g = g + o.weight_decay * p
    else:
        p = p * (1 - lr * o.weight_decay)
    (a, b), (m, v) = o.betas, s or (0, 0)
    m, v = a * m + (1 - a) * g, b * v + (1 - b) * g * g
    return p - lr * (m / (1 - a**t)) / (np.sqrt(v / (1 - b**t)) + o.eps), (m, v)


def sgd(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    g = g + o.weight_decay * p
    v = g if s is None else o.momentum * s + (1 - o.dampening) * g
    return p - lr * (g + o.momentum * v if o.nesterov else v), v


def rmsprop(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    v, mean, velocity = s or (0, 0, 0)
    v, mean = o.alpha * v + (1 - o.alpha) * g * g, o.alpha * mean + (1 - o.alpha) * g
    step = g / (np.sqrt(v - mean**2 * o.centered) + o.eps)
    velocity = o.momentum * velocity + step
    return p - lr * velocity, (v, mean, velocity)


def adagrad(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    s = (o.initial if s is None else s) + g * g
    return p - lr * g / (np.sqrt(s) + o.eps), s


def lion(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    (a, b), m = o.betas, 0 if s is None else s
    return p - lr * (np.sign(a * m + (1 - a) * g) + o.weight_decay * p), b * m + (1 - b) * g


def lars(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    size, slope = np.linalg.norm(p), np.linalg.norm(g)
    local = o.coefficient * size / (slope + o.weight_decay * size)
    step = lr * local * (g + o.weight_decay * p)
    v = o.momentum * (0 if s is None else s) + step
    return p - (step + o.momentum * v if o.nesterov else v), v


def lamb(p: Any, g: Any, s: Any, t: int, o: Any, lr: float) -> Any:
    (a, b), (m, v) = o.betas, s or (0, 0)
    m, v = a * m + (1 - a) * g, b * v + (1 - b) * g * g
    step = m / (1 - a**t) / (np.sqrt(v / (1 - b**t)) + o.eps) + o.weight_decay * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(step) * step, (m, v)


CASES: list[tuple[Any, Any, str, dict[str, Any]]] = [
    (optim.SGD(0.1), sgd, "SGD", {}),
    (optim.SGD(0.1, 0.9, weight_decay=0.01), sgd, "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    (optim.SGD(0.1, 0.9, True), sgd, "SGD", {"momentum": 0.9, "nesterov": True}),
    (optim.SGD(0.1, 0.9, dampening=0.3), sgd, "SGD", {"momentum": 0.9, "dampening": 0.3}),
    (optim.Adam(0.01, weight_decay=0.1), adam, "Adam", {"weight_decay": 0.1}),
    (optim.Adam(0.01, (0.0, 0.9)), adam, "Adam", {"betas": (0.0, 0.9)}),
    (optim.AdamW(0.01, (0.8, 0.99)), adam, "AdamW", {"betas": (0.8, 0.99)}),
    (optim.RMSprop(0.01), rmsprop, "RMSprop", {}),
    (
        optim.RMSprop(0.01, 0.9, momentum=0.5, centered=True),
        rmsprop,
        "RMSprop",
        {"alpha": 0.9, "momentum": 0.5, "centered": True},
    ),
    (optim.Adagrad(0.1, initial=0.2), adagrad, "Adagrad", {"initial_accumulator_value": 0.2}),
    (optim.Lion(0.01, weight_decay=0.1), lion, "", {}),
    (optim.LARS(0.1, weight_decay=0.1), lars, "", {}),
    (optim.LARS(0.1, nesterov=True), lars, "", {}),
    (optim.LAMB(0.1, weight_decay=0.1), lamb, "", {}),
]


def run(opt: Any, steps: int, params: Any, workers: int = 1) -> Any:
    step = ost.compile(opt.update, donate=("params", "state"))
    with on(workers):
        params, state = ost.tree_map(ost.asarray, params), None
        state = opt.init(params)
        for k in range(1, steps + 1):
            params, state = step(params, tree(k), state)
        assert int(state["step"]) == steps
        return ost.tree_map(np.asarray, params)


@pytest.mark.parametrize(
    ("opt", "reference", "theirs", "options"), CASES, ids=lambda x: type(x).__name__[:8]
)
def test_numbers_are_those_of_others(opt: Any, reference: Any, theirs: str, options: Any) -> None:
    found = leaves(run(opt, 4, tree()))
    for k, p in enumerate(leaves(tree())):
        s = None
        for t in range(1, 5):
            p, s = reference(p, leaves(tree(t))[k], s, t, opt, opt.lr)
        np.testing.assert_allclose(found[k], p, rtol=1e-6)
    try:
        import torch
    except ImportError:
        return  # the references stand for it
    if theirs:
        given = [torch.tensor(p, requires_grad=True) for p in leaves(tree())]
        other = getattr(torch.optim, theirs)(given, lr=opt.lr, **options)
        for t in range(1, 5):
            for p, g in zip(given, leaves(tree(t)), strict=True):
                p.grad = torch.tensor(g)
            other.step()
        for ours, p in zip(found, given, strict=True):
            np.testing.assert_allclose(ours, p.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("opt", [case[0] for case in CASES[4::3]], ids=lambda o: type(o).__name__)
def test_several_workers(opt: Any) -> None:
    one = leaves(run(opt, 2, tree()))
    for two, whole in zip(leaves(run(opt, 2, tree(), 2)), one, strict=True):
        np.testing.assert_allclose(two, whole, rtol=1e-9)


def test_state_lies_as_parameters_do() -> None:
    opt = optim.Adam()
    with on(2):
        w = {
            "rows": ost.asarray(numbers(6, 4), split=0),
            "columns": ost.asarray(numbers(6, 4), split=1),
        }
        g = ost.tree_map(lambda x: ost.asarray(numbers(6, 4), split=x.split), w)
        state = opt.init(w)
        step = ost.compile(opt.update)
        for _ in range(2):
            for name, split in (("rows", 0), ("columns", 1)):
                assert [state[slot][name].split for slot in ("m", "v")] == [split] * 2
                assert w[name].split == split
            w, state = step(w, g, state)
        sent = {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast"}
        assert not sent & {n.op for n in step.plan.lowered.nodes}


def test_an_update_is_a_kernel_a_leaf_and_one_plan() -> None:
    """What multiplies, adds and takes roots is one kernel for each parameter, and rates are no new plan."""
    shapes = [(3, 50 + k) if k % 2 else (700 + k,) for k in range(60)]
    w, g = ([numbers(*s, dtype=np.float32) for s in shapes] for _ in range(2))
    opt = optim.AdamW(optim.Warmup(optim.Cosine(1e-3, 100), 10), mask=lambda path: "[1]" in path)
    with on(1):
        step = ost.compile(opt.update)
        state = opt.init(w)
        for _ in range(3):
            w, state = step(w, g, state)
        assert all(x.dtype == np.float32 for x in flatten((w, state["m"], state["v"]))[0])
        nodes = [n.op for n in step.plan.program.graph.nodes]
        assert nodes.count("fused") <= 60 + 1, "and one for what all share"
        assert len(nodes) < 110
        assert len(step.misses) <= 2  # NumPy's arrays at first
        alike = [np.ones(300, np.float32)] * 60
        state = opt.init(alike)
        step(alike, alike, state)
        shared = [n.op for n in step.plan.program.graph.nodes].count("fused")
        assert shared <= 60 / 3 + 1, "parameters of one shape share kernels"


def test_a_call_that_is_given_twice_as_many_arrays_does_twice_as_much() -> None:
    """Of Python's calls, which were four times as many when each array was compared with all others."""
    step = ost.compile(lambda w: [x + 1 for x in w], donate=(0,))
    counts = []
    with on(1):
        for n in (40, 80):
            w = [ost.zeros(3 + k) for k in range(n)]
            for _ in range(3):
                w = step(w)
            calls: list[str] = []
            sys.setprofile(lambda frame, event, arg, calls=calls: calls.append(event))
            try:
                step(w)
            finally:
                sys.setprofile(None)
            counts.append(len(calls))
    assert counts[1] < 2.2 * counts[0]


# -- what is trained ------------------------------------------------------------------------
@dataclass(frozen=True)
class Layer:
    w: Any
    calls: Any
    name: str


def test_what_is_no_float_is_left_alone() -> None:
    layer = Layer(ost.ones(2), ost.arange(3), "in")
    opt, params = optim.Adam(0.5), {"layer": layer, "rate": 0.5, "none": None, "n": 7, "on": True}
    state = opt.init(params)
    assert state["m"]["layer"].calls is None
    grads = {
        "layer": Layer(ost.ones(2), None, None),
        "rate": -1.0,
        "none": None,
        "n": None,
        "on": None,
    }
    for _ in range(2):
        new, state = opt.update(params, grads, state)
        assert new["layer"].name == "in"
        assert new["n"] == 7
        assert new["on"] is True
        np.testing.assert_array_equal(new["layer"].calls, [0, 1, 2])
        np.testing.assert_allclose(new["layer"].w, [0.5, 0.5], rtol=1e-6)
        assert float(new["rate"]) == pytest.approx(1.0)


@pytest.mark.parametrize("mask", [{"b": False, "w": [True]}, lambda path: path.startswith("['w']")])
def test_masks(mask: Any) -> None:
    params, zero = tree(), ost.tree_map(np.zeros_like, tree())
    for opt in (
        optim.SGD(0.5, weight_decay=0.5, mask=mask),
        optim.AdamW(0.5, weight_decay=0.5, mask=mask),
    ):
        new, _ = opt.update(params, zero, opt.init(params))
        np.testing.assert_array_equal(new["b"], params["b"])
        np.testing.assert_allclose(new["w"][0], 0.75 * params["w"][0])
    lars = optim.LARS(1.0, momentum=0.0, mask=mask)
    new, _ = lars.update(params, tree(1), lars.init(params))
    np.testing.assert_allclose(new["b"], params["b"] - tree(1)["b"])


def test_masters_keep_what_halves_lose() -> None:
    w = {"half": ost.ones(3, dtype="bfloat16"), "single": ost.ones(3, dtype="float32")}
    g = ost.tree_map(ost.ones_like, w)
    ends = {}
    for master in (False, True):
        opt = optim.SGD(5e-4, 0.5, master=master)
        p, state, step = w, opt.init(w), ost.compile(opt.update)
        for _ in range(8):
            p, state = step(p, g, state)
        assert p["half"].dtype == bfloat16
        assert state["velocity"]["half"].dtype == np.float32
        ends[master] = float(p["half"][0])
        single = float(p["single"][0])
    assert state["master"]["single"] is None
    assert ends[False] == 1.0, "a step is lost in the half's 8 bits"
    assert ends[True] == pytest.approx(single, abs=4e-3)
    assert float(state["master"]["half"][0]) == pytest.approx(single, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: optim.Adam(betas=(0.9, 1.0)), r"Adam .*: got betas=\(0.9, 1.0\); needed numbers"),
        (lambda: optim.SGD(-1.0), "SGD .*: got lr=-1.0; needed a number that is 0 or more"),
        (lambda: optim.SGD(0.1).update({"a": 1.0}, {"b": [1.0, 2.0]}, {"step": 0}), "a gradient for each"),
        (lambda: optim.Adam().update(1.0, 1.0, {"step": 0}), "begin with opt.init"),
        (lambda: optim.Adam().update(1.0, 1.0, None), "got state=None; needed a dict of step, m, v; begin"),
        (lambda: optim.SGD(0.1).update(1.0, 1.0, {}), "got state={}; needed a dict of step; begin with"),
        (lambda: optim.Adam().update([1.0], [1.0], optim.Adam().init((1.0, 2.0))), "as the parameters are"),
        (lambda: optim.Adam().init(np.ones(2, complex)), "a parameter  of complex numbers"),
        (lambda: optim.AdamW(mask=[1]).update([1.0], [1.0], optim.Adam().init([1.0])), "or bools as in"),
        (lambda: optim.clip_by_norm(1.0, -1.0), "clip_by_norm .*: got most=-1.0"),
        (lambda: optim.EMA(1.0), "EMA .*: got decay=1.0"),
        (lambda: optim.Accumulate(optim.SGD(0.1), 0), "Accumulate .*: got every=0"),
        (lambda: optim.Cosine(1.0, 0), "Cosine .*: got steps=0"),
        (lambda: optim.Piecewise((1.0,), (3,)), "1 values and boundaries"),
    ],
)  # fmt: skip
def test_refusals(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


def test_constant_gradients_have_no_negative_variance() -> None:
    opt = optim.RMSprop(1e-3, 0.5, centered=True)
    w = ost.asarray(np.linspace(0.1, 7, 99, dtype=np.float32))
    g, state, step = w, opt.init(w), ost.compile(opt.update)
    for _ in range(40):
        w, state = step(w, g, state)
    assert np.isfinite(w).all()


def test_many_trainings_side_by_side() -> None:
    """As `vmap` has them: each as if it were alone."""
    opt = optim.LAMB(0.1)
    many = numbers(3, 4)
    states = [opt.init(w) for w in many]
    stacked = ost.tree_map(lambda *x: ost.stack(x), *states)
    new, _ = ost.vmap(opt.update)(ost.asarray(many), ost.asarray(many) + 1, stacked)
    for k, w in enumerate(many):
        np.testing.assert_allclose(new[k], opt.update(w, w + 1, states[k])[0], rtol=1e-9)


def test_updates_have_gradients() -> None:
    """By the rate, as those who learn it want, against finite differences."""

    def after(rate: Any) -> Any:
        opt, w = optim.Adam(), ost.asarray(numbers(4))
        state = opt.init(w)
        for _ in range(3):
            w, state = opt.update(w, ost.grad(lambda w: (w**4).sum())(w), state, lr=rate)
        return (w**2).sum()

    slope = (float(after(0.01 + 1e-5)) - float(after(0.01 - 1e-5))) / 2e-5
    assert float(ost.grad(after)(0.01)) == pytest.approx(slope, rel=1e-5)


# -- schedules ------------------------------------------------------------------------------
def test_schedules() -> None:
    t = np.arange(25)
    wave = 0.1 + (2 - 0.1) * (1 + np.cos(np.pi * np.minimum(t / 20, 1))) / 2
    rising = np.where(t < 5, 0.5 + 1.5 * t / 5, 2 * 0.5 ** ((t - 5) / 3))
    for schedule, wanted in (
        (optim.StepDecay(2.0, 10, 0.5), 2.0 * 0.5 ** (t // 10)),
        (optim.Exponential(2.0, 0.5, 3), 2.0 * 0.5 ** (t / 3)),
        (optim.Cosine(2.0, 20, 0.1), wave),
        (optim.Polynomial(2.0, 20, 1.0, 2.0), 1 + (1 - np.minimum(t / 20, 1)) ** 2),
        (optim.Warmup(optim.Exponential(2.0, 0.5, 3), 5, 0.5), rising),
        (optim.Warmup(2.0, 5), np.minimum(2 * t / 5, 2)),
        (optim.Piecewise((1.0, 2.0, 0.5), (3, 9)), np.where(t < 3, 1, np.where(t < 9, 2, 0.5))),
    ):
        np.testing.assert_allclose(
            schedule(t), wanted, rtol=2e-6, atol=1e-7, err_msg=repr(schedule)
        )
    cycle = np.asarray(optim.OneCycle(1.0, 20)(np.arange(20)))
    assert cycle[0] == pytest.approx(1 / 25)
    assert cycle[5] == pytest.approx(1.0)
    assert cycle[19] == pytest.approx(1 / 25e4, abs=1e-7)


def test_schedules_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(other, max_lr=2.0, total_steps=30)
    found = []
    for _ in range(30):
        found.append(other.param_groups[0]["lr"])
        other.step()
        theirs.step() if len(found) < 30 else None
    np.testing.assert_allclose(optim.OneCycle(2.0, 30)(np.arange(30)), found, rtol=1e-5, atol=1e-7)


def test_rates_given_in_any_way_are_one_plan() -> None:
    """By a schedule, an array, or anew at each update."""
    ends = []
    for lr in (0.5, np.float32(0.5), ost.asarray(0.5), lambda step: 0.5 + 0 * step):
        opt = optim.SGD(lr)
        ends.append(opt.update(ost.ones(2, "float32"), ost.ones(2, "float32"), opt.init(1.0))[0])
        assert ends[-1].dtype == np.float32
    for end in ends:
        np.testing.assert_array_equal(end, [0.5, 0.5])
    step = ost.compile(lambda w, g, s, lr: optim.SGD(1.0).update(w, g, s, lr=lr))
    w, state = ost.ones(2), {"step": ost.asarray(0)}
    for rate in (0.25, 0.125, 0.0625):
        w, state = step(w, ost.ones(2), state, rate)
    assert float(w[0]) == 1 - 0.4375
    assert len(step.misses) == 1


# -- beside ---------------------------------------------------------------------------------
def test_clipping() -> None:
    g = {"a": numbers(3, 4), "b": numbers(5), "n": np.arange(3)}
    norm = np.sqrt((g["a"] ** 2).sum() + (g["b"] ** 2).sum())
    assert float(optim.global_norm(g)) == pytest.approx(norm)
    short = optim.clip_by_norm(g, 0.5)
    assert float(optim.global_norm(short)) == pytest.approx(0.5)
    np.testing.assert_allclose(short["a"], g["a"] * 0.5 / norm)
    np.testing.assert_array_equal(optim.clip_by_norm(g, 1e3)["b"], g["b"])
    np.testing.assert_array_equal(optim.clip_by_value(g, 0.5)["a"], np.clip(g["a"], -0.5, 0.5))
    half = ost.asarray([3e4, 4e4], dtype="float16")
    assert float(optim.global_norm(half)) == pytest.approx(5e4, rel=1e-2), "whose squares overflow"
    assert optim.clip_by_norm(half, 1.0).dtype == np.float16


@pytest.mark.parametrize("workers", [1, 2])
def test_accumulated_gradients_are_one_batch(workers: int) -> None:
    inner = optim.Adam(0.1)
    opt = optim.Accumulate(inner, 3)
    with on(workers):
        w = ost.tree_map(ost.asarray, tree())
        state, step = opt.init(w), ost.compile(opt.update, donate=("params", "state"))
        whole, kept = tree(), inner.init(tree())
        for k in range(6):
            w, state = step(w, tree(k), state)
            if k % 3 == 2:
                mean = ost.tree_map(lambda *g: sum(g) / 3, *[tree(n) for n in range(k - 2, k + 1)])
                whole, kept = inner.update(whole, mean, kept)
            for a, b in zip(leaves(w), leaves(whole), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9)
        assert int(state["optimizer"]["step"]) == 2


def test_means_of_parameters() -> None:
    ema, w = optim.EMA(0.9), {"w": ost.asarray(numbers(3)), "n": 3}
    mean = ema.init(w)
    step = ost.compile(
        lambda w, mean: ({"w": w["w"] + 1, "n": w["n"]}, ema.update(mean, w)), donate=(0, 1)
    )
    wanted = value = numbers(3)
    for _ in range(4):
        wanted, value = 0.9 * wanted + 0.1 * value, value + 1
        w, mean = step(w, mean)
    np.testing.assert_allclose(mean["mean"]["w"], wanted)
    assert mean["mean"]["n"] is None
    used = ema.params(mean, {"w": ost.ones(3, dtype="bfloat16"), "n": 5})
    assert (used["w"].dtype, used["n"]) == (bfloat16, 5)
    early = optim.EMA(0.999, warm_up=True)
    np.testing.assert_allclose(early.update(early.init(1.0), 0.0)["mean"], 2 / 11, rtol=1e-6)


def test_a_saved_state_goes_on(tmp_path: Any) -> None:
    opt, w = optim.LAMB(0.1), tree()
    state = opt.init(w)
    for k in range(4):
        if k == 2:
            ost.save_state(tmp_path, {"w": w, "opt": state}, step=k)
        w, state = opt.update(w, tree(k), state)
    saved = ost.load_state(tmp_path)
    again, kept = saved["w"], saved["opt"]
    for k in (2, 3):
        again, kept = opt.update(again, tree(k), kept)
    for a, b in zip(leaves((w, state)), leaves((again, kept)), strict=True):
        np.testing.assert_array_equal(a, b)
