"""Plans show the kernels that they run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.graph import Node
from ostinato.ops.cpu.jit import llvm

import ostinato as ost
from tests.sessions import use

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
X = np.random.default_rng(0).normal(size=(20, 30))


def squares(x: Any, c: Any) -> Any:
    d = ((x[:, None] - c[None]) ** 2).sum(-1)
    waves = ost.sin(x) * 2 + x
    return d, waves, waves.T.max(), ost.nn.softmax(x, axis=1), (x > 0).astype(ost.float32)


def run_listing(node: Node, text: str) -> None:
    """It is Python: it computes what the kernel computes."""
    body, rng = node.kw["body"], np.random.default_rng(1)
    extents = {c: int(n) for c, n in re.findall(r"for (\w) in range\((\d+)\)", text)}
    names: dict[str, Any] = {"sin": np.sin, "exp": np.exp, "float32": np.float32}
    names |= {"min": min, "max": max, "isfinite": np.isfinite}

    def array(name: str, start: float | None = None) -> Any:
        inside = re.findall(rf"\b{name}\[([\w, ]+)\]", text.split("for ", 1)[1])[0]
        shape = tuple(extents[c] for c in inside.split(", ")) if inside != "0" else (1,)
        return rng.normal(size=shape) if start is None else np.full(shape, start)

    ins = [array(f"x{k}") for k in range(len(body.inputs))]
    outs = [
        array(f"y{k}", -np.inf if f"= max(y{k}" in text else 0.0)
        for k in range(len(body.out_specs))
    ]
    names |= {f"x{k}": x for k, x in enumerate(ins)} | {f"y{k}": y for k, y in enumerate(outs)}
    exec(text, names)
    made = tuple(np.empty(s.shape, s.dtype) for s in body.out_specs)
    given = [x.reshape(s.shape) for x, s in zip(ins, body.inputs, strict=True)]
    kernel = OPS[node.op].kernel
    assert kernel is not None
    kernel(np, made, *given, body=body)
    for found, wanted in zip(outs, made, strict=True):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-12, atol=1e-12)


def test_listings_compute_what_the_kernels_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.planner.cpu.fuse.WORTH", 0)
    with use():
        f = ost.compile(squares)
        f(ost.asarray(X), ost.asarray(X[:7]))
        text = f.plan.source()
        kernels = [n for n in f.plan.program.graph.nodes if n.op.startswith("fused")]
    parts = re.split(r"# kernel \d+ of \d+\n", text)[1:]
    assert len(parts) == len(kernels) >= 3
    for node, part in zip(kernels, parts, strict=True):
        assert "test_source.py:" in part
        run_listing(node, part)
    assert re.search(r"# \S*test_source\.py:\d+  waves = ost\.sin\(x\) \* 2 \+ x\n", text)
    assert re.search(r"test_source\.py:\d+  d = \(\(x\[:, None\] - c\[None\]\) \*\* 2\)", text)


def test_parts_of_workers_and_bodies_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.planner.cpu.fuse.WORTH", 0)
    with use((3,)):
        f = ost.compile(lambda x: ost.repeat(4, lambda x: ost.exp(-x) * 0.5, x))
        f(ost.asarray(X, split=0))
        text = f.plan.source()
    assert "kernel 1 of 1" in text
    assert "# x0: float64[7, 30]" in text
    assert "for i in range(210):" in text


def test_on_demand_the_text_for_llvm_and_the_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.planner.cpu.fuse.WORTH", 0)
    with use():
        f = ost.compile(lambda x: ost.exp(x) + 1)
        f(ost.asarray(X))
        assert "define" not in f.plan.source()
        assert "define internal void @body" in f.plan.source(llvm=True)
        assert re.search(r"^\s+\.globl\s+_?run", f.plan.source(assembly=True), re.M)
        g = ost.compile(lambda x: x @ x.T)
        g(ost.asarray(X))
        assert g.plan.source().startswith("# no kernels")


def test_stages_are_shown_by_their_indices() -> None:
    def step(x, c):
        d = ((x[:, None] - c) ** 2).sum(-1)
        near = ost.nn.one_hot(d.argmin(1), c.shape[0])
        return near.T @ x

    with use():
        f = ost.compile(step)
        x = ost.asarray(np.random.default_rng(0).standard_normal((3000, 5)))
        f(x, x[:4])
        text = f.plan.source()
        assert "units of 256 of i; lanes run along i" in text
        assert "= sum over j of t" in text
        assert "= argmin over k of t" in text
        assert "d = ((x[:, None] - c) ** 2).sum(-1)" in text
        assert "define internal void @body" in f.plan.source(llvm=True)
        assert "vfm" in f.plan.source(assembly=True) or "fmadd" in f.plan.source(assembly=True)
