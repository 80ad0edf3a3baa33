"""Every operation of the registry: its samples, its scalar expression, what its kernel promises."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.encode import decode_graph, digest, encode_graph
from ostinato.ops.core.registry import ANY
from ostinato.ops.core.show import parse
from ostinato.ops.jit.arrays import formula_kernel

from tests.helpers import MESHES, assert_same
from tests.thorough import THOROUGH

from .nodes import SAMPLED, blank, graphs, ins_of, nodes_of, of, place, run, same, traced, whole
from .samples import (
    NOT_SAMPLED,
    OF_POSITIVE,
    OF_SHARES,
    OF_SIGNED,
    OF_TWO,
    SAMPLES,
    TRIED,
    special,
)


def test_nothing_is_sampled_that_does_not_exist():
    assert set(SAMPLES) <= set(SAMPLED)
    assert set(NOT_SAMPLED) <= set(OPS)


def test_a_missing_sample_is_named(monkeypatch):
    monkeypatch.delitem(SAMPLES, "tanh")
    with pytest.raises(pytest.fail.Exception, match=r"add SAMPLES\['tanh'\] in tests/ops/sampl"):
        of("tanh")


DECOMPOSED = ("eigh", "svd")


@pytest.mark.parametrize("name", SAMPLED)
def test_samples(name):
    """On one worker each; the first on two meshes, and a fifth of the others on one."""
    r = random.Random(name)
    for k, sample in enumerate(of(name)):
        others = r.sample(MESHES, 1) if r.random() < 0.2 else []
        used = {n.op for g in graphs(traced(sample)[0]) for n in g.nodes}
        assert name in used, f"a sample of {name} uses {sorted(used)} only"
        x, atol = np.asarray(sample.inputs[0]) if name in DECOMPOSED else None, None
        if x is not None:  # of what is put together again each element errs as the largest
            atol = 32 * float(np.finfo(x.dtype).eps) * float(np.abs(x).max(initial=0))
        assert_same(
            sample.function,
            sample.reference,
            *sample.inputs,
            numerics=sample.numerics,
            rtol=sample.rtol,
            atol=atol,
            meshes=MESHES if THOROUGH else others if k else r.sample(MESHES, 2),
        )


# -- scalar expressions --------------------------------------------------------------------
def _better(is_better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    return lambda a, b: a if a != a or (b == b and is_better(a, b)) else b


NUMPY_WORDS = """abs acos acosh asin asinh atan atan2 atanh cbrt ceil conj copysign cos cosh exp
exp2 expm1 floor hypot isfinite isinf log log10 log1p log2 logaddexp nextafter rint sign signbit
sin sinh sqrt tan tanh trunc"""
WORDS: dict[str, Any] = {  # what the expressions are made of; max and min give NaN if there is one
    **{name: getattr(np, name) for name in NUMPY_WORDS.split()},
    "bool": bool,
    "erf": lambda x: math.erf(float(x)),
    "max": _better(lambda a, b: a > b),
    "min": _better(lambda a, b: a < b),
}
for _name in f"{OF_SIGNED} {OF_POSITIVE} {OF_SHARES} {OF_TWO} betainc".split():
    WORDS[_name] = special(_name)[1]


def _by_formula(name: str) -> Callable[..., Any]:
    def one(*xs: Any) -> Any:
        out = np.empty((1,), xs[-1].dtype)
        formula_kernel(name)(np, out, *(np.asarray(x) for x in xs))
        return out[0]

    return one


def _sort_key(x: Any) -> int:
    """From its bits, one by one."""
    if x.dtype.kind in "bu":
        return int(x)
    top = 1 << (8 * x.dtype.itemsize - 1)
    if x.dtype.kind == "i":
        return int(x) + top
    word = int.from_bytes(x.dtype.type(math.nan if x != x else x).tobytes(), "little")
    return 2 * top - 1 - word if word >= top else word + top


WORDS |= {name: _by_formula(name) for name in TRIED.split()}
WORDS["sort_key"] = _sort_key


@pytest.mark.parametrize("name", [n for n in SAMPLED if OPS[n].scalar])
def test_scalar(name):
    """The expression for one element gives what the kernel gives; of real numbers, as in kernels."""
    text = OPS[name].scalar
    code = compile(text.format("x0", "x1", "x2", "x3", "x4"), text, "eval")
    for _, _, operands, (made,) in nodes_of(name):
        if any(x.dtype.kind == "c" for x in operands) and "abs(" in text:
            continue
        words = {**WORDS, "cast": lambda x, d=made.dtype: np.asarray(x).astype(d)}
        rows = [np.broadcast_to(x, made.shape).reshape(-1) for x in operands]
        found = blank((made.size,), made.dtype)
        with np.errstate(all="ignore"):
            for n, row in enumerate(zip(*rows, strict=True)):
                y = eval(code, words, {f"x{k}": x for k, x in enumerate(row)})
                found[n] = np.asarray(y).astype(made.dtype)
        what = f"{text} for {', '.join(str(x.dtype) for x in operands)}"
        found = found.reshape(made.shape)
        same(found, made, what)


# -- what kernels promise ------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in SAMPLED if OPS[n].run.overwrite])
def test_overwrite(name):
    """A result may be written over an operand of its size."""
    allowed = OPS[name].run.overwrite
    for graph, node, operands, (made,) in nodes_of(name):
        for k, x in enumerate(operands):
            if (x.shape, x.dtype) == (made.shape, made.dtype) and (k in allowed or allowed == ANY):
                given = [y.copy() for y in operands]
                with np.errstate(all="ignore"):
                    run(graph, node, given, outs=[given[k]])
                same(given[k], made, f"{node} over its operand {k}")


@pytest.mark.parametrize("name", ["moments", "argmin_pair", "argmax_pair"])
def test_unread_results(name):
    """A result that nobody reads is None."""
    for graph, node, operands, made in nodes_of(name):
        for kept in range(len(made)):
            unread = [k for k in range(len(made)) if k != kept]
            found = run(graph, node, operands, unread=unread)
            same(found[kept], made[kept], f"{node}, result {kept} only")


@pytest.mark.parametrize("name", [n for n in SAMPLED if OPS[n].view and OPS[n].kernel])
def test_views_with_kernels(name):
    """Where an operation has both, they agree."""
    for graph, node, operands, (made,) in nodes_of(name):
        at = place(graph, node, [whole(x.shape) for x in operands], [whole(made.shape)])
        same(OPS[name].view(np, operands[0], at, **node.kw), made, str(node))


@pytest.mark.parametrize("name", SAMPLED)
def test_cost(name):
    """Costs are numbers of operations and bytes."""
    for graph, node, *_ in nodes_of(name):
        flops, moved = OPS[name].cost(ins_of(graph, node), node.specs, node.kw)
        assert flops >= 0
        assert moved >= 0


@pytest.mark.parametrize("name", SAMPLED)
def test_graphs_as_data(name):
    """Graphs of samples are text that reads back, and survive encoding."""
    for sample in of(name):
        graph, _ = traced(sample)
        assert digest(parse(str(graph))) == digest(graph)
        assert digest(decode_graph(encode_graph(graph))) == digest(graph)
