"""Seventy lines that are wrong, and that a type checker finds before they run; and as many ways to do it right.

This is read as text by tests/front/test_types.py, and never runs."""

RIGHT = """
from dataclasses import dataclass
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.fft import rfft
from ostinato.linalg import qr as factorize
from ostinato.nn import Conv, initializers, relu
from ostinato.random import normal
from ostinato.signal import stft
from ostinato.solve import cg
from ostinato.special import erf

layer: ost.nn.Conv = Conv(1, 2, 3, weight_init=initializers.he_normal())
layers = (ost.nn.MaxPool(2, stride=2), ost.nn.AvgPool(3), ost.nn.ConvTranspose(1, 2, 3))
layers_of_text = ost.nn.LSTM(3, 4, layers=2, dropout=0.1), ost.nn.GRU(3, 4), ost.nn.BatchNorm(3)
drawn: ost.Array = relu(erf(normal(4, seed=1)))
several = (rfft(drawn), factorize, stft, cg)
x = ost.ones((3, 4), dtype=ost.float32, split=0)
y: ost.Array = ost.tanh(x @ x.mT) + 1
z: ost.Array = 2.0 * y - np.ones((3, 3)) / 3
total: float = float(y.sum())
shape: tuple[int, ...] = ost.concat([x, x], axis=0).shape
ost.add(x, [[1.0, 2.0, 3.0, 4.0]])
ost.where(x > 0, x, 0)
ost.zeros(3, dtype="float64")
ost.zeros((3, 4), dtype=np.float32)
ost.asarray(range(3), dtype=int)
ost.einsum("ij,kj->ik", x, x)
ost.sum(x, axis=(0, 1), keepdims=True).astype(ost.int64).item()
q, r = ost.linalg.qr(x, mode="reduced")
values, where = ost.topk(x, 2)
ost.random.normal((3, 4), seed=1, split=(0, None))
ost.nn.softmax(x, axis=-1)


@ost.compile
def step(w: ost.Array, rate: float = 0.1) -> ost.Array:
    slope: ost.Array = ost.grad(loss)(w)
    return w - rate * slope


@ost.compile(donate="w", numerics="fast", memory_limit=2**30)
def given(w: ost.Array) -> tuple[ost.Array, int]:
    return w + 1, 3


def loss(w: ost.Array) -> ost.Array:
    return (w**2).sum()


stepped: ost.Array = step(x, rate=0.2)
pair: tuple[ost.Array, int] = given(x)
step.plan.explain().splitlines()


@dataclass
class Model:
    w: ost.Array
    steps: ost.Array


def turn(m: Model) -> Model:
    return Model(m.w - ost.grad(loss)(m.w), m.steps + 1)


def cost(m: Model, rate: float) -> tuple[ost.Array, int]:
    return loss(m.w) * rate, 3


def pairs(s: tuple[ost.Array, ost.Array]) -> tuple[ost.Array, ost.Array]:
    return s[0] + 1, s[1] * 2


value, slope = ost.value_and_grad(loss)(x)
model = ost.repeat(3, turn, Model(x, x))
model = ost.while_loop(lambda m: m.steps.sum() < 5, turn, model, most=9)
model, kept = ost.scan(lambda m, _: (turn(m), m.w), model, length=3)
way: ost.Array = ost.grad(cost, has_aux=True)(model, 0.1)[0].w
both: tuple[tuple[ost.Array, int], Model] = ost.value_and_grad(cost, has_aux=True)(model, rate=0.1)
ost.grad(lambda w: w**3)(2.0)
ost.grad(cost, argnums=(0,), has_aux=True)(model, 0.1)
count, grown = ost.repeat(4, pairs, (0, x))
count.item()
four = ost.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, *s[1:]), (0, x, x, x))
four[0].item()
named = ost.repeat(3, lambda s: {"n": s["n"] + 1, "w": s["w"]}, {"n": 0, "w": x})
named["n"].item()
ost.cond(x.sum() > 0, lambda: x, lambda: x + 1).mT
moved: tuple[ost.Array, ost.Array] = ost.jvp(loss, (x,), (x,))
result, push = ost.linearize(loss, x)
push(x).shape
again: ost.Array = ost.checkpoint(loss)(x)
rows: ost.Array = ost.vmap(loss)(x)
ost.save("x.npy", x)
loaded: ost.Array = ost.load("x.npy", resident=False)
column: ost.Array = ost.load("x.parquet", dataset=["a", "b"])
waves: ost.Array = ost.from_blocks(lambda at: np.zeros((at[0].stop - at[0].start, 2)), (5, 2), "f8")
joined: ost.Array = ost.from_blocks([np.zeros(2), np.ones(3)], 5, np.float64)
with ost.connect(2, numerics="any-workers") as session:
    workers: int = session.workers
with ost.profile("run.html") as p:
    seconds: float = p.seconds
end = ost.on_progress(lambda now: print(now.what, now.seconds))
end()
ost.quiet()
state: Any = ost.load_state("folder")
handle: ost.Saving = ost.save_state("folder", {"w": x}, step=3, wait=False)
plan: ost.Plan = ost.Plan.from_file("a.plan")
ost.run(plan, x)
try:
    ost.evaluate(x, y)
except ost.errors.OstinatoError as error:
    print(error.line)
"""

BEGIN = """
from dataclasses import dataclass

import ostinato as ost

x = ost.ones((3, 4))


@dataclass
class Model:
    w: ost.Array


@ost.compile
def step(w: ost.Array, rate: float = 0.1) -> ost.Array:
    return w - rate


def loss(w: ost.Array) -> ost.Array:
    return w.sum()


def turn(m: Model) -> Model:
    return Model(m.w - 1)


session = ost.connect()
plan = step.plan
model = Model(x)
"""

WRONG = """
ost.tanh()
ost.tanh(x, 1.0)
ost.tanh("x")
ost.tanh(None)
ost.tanh({1: 2})
ost.add(x)
ost.add(x, "y")
ost.add(x, x, 1.0)
ost.tanhh(x)
ost.sum(x, "0")
ost.sum(x, axis=0.5)
ost.sum(x, keepdim=True)
ost.sum(x, dtype=3)
ost.mean(x, axis=[0])
ost.max()
ost.matmul(x)
ost.einsum(x, x)
ost.concat(x, x)
ost.concat([x, "y"], axis="0")
ost.reshape(x)
ost.where(x > 0, x)
ost.zeros("3")
ost.zeros((3, 4), 5, 6)
ost.zeros((3, 4), dtype=1.5)
ost.ones((3, "4"))
ost.full((3, 4))
ost.arange()
ost.eye("3")
ost.sort(x, axis=(0, 1))
ost.searchsorted(x, 1, side="middle")
ost.split(x)
ost.random.normal((3, 4), sead=1)
ost.random.uniform(shape="3")
ost.linalg.qr(x, mode="economic")
ost.linalg.solve(x)
ost.linalg.invert(x)
ost.nn.relu(x, x)
ost.nn.mse_loss(x, x, reduction="average")
ost.grad(3)
ost.grad(loss)(x, x, x)
ost.grad(loss, has_aux="yes")
ost.checkpoint(loss)()
ost.grad(loss)(x).shapes
ost.value_and_grad(loss)(x)[0].shapes
ost.vmap(x)
ost.vmap(loss)(x).shapes
ost.jvp(loss, (x,), (x,))[1].shapes
ost.while_loop(lambda m: True, turn, x)
ost.while_loop(lambda m: True, turn, model).v
ost.repeat(3, turn, model).v
ost.repeat(3, turn, x)
ost.repeat()
ost.save(x, "x.npy")
ost.load(3)
ost.load("x.npy", resident="no")
ost.save_state("folder", {"w": x})
ost.connect(numerics="exact")
ost.connect(mesh=3)
ost.compile(loss, donate="w")
ost.compile(memory_limit="4 GB")
step("x")
step(x, rate="fast")
step(x).shapes
x.reshpe(3)
x.sum(axis="0")
x.astype(3)
x + "1"
x @ None
x.shape = (4, 3)
plan.explain(3)
ost.Plan.from_file(3)
ost.run(step, x)
session.worker
ost.profile(3)
ost.on_progress("print")
ost.quiet("yes")
total: int = ost.tanh(x)
name: str = x.dtype
if ost.isdtype(x.dtype) > 3: pass
"""
