"""`ost.plan`: what a function would become on any mesh of any machine, without a worker there or here.

    plan = ost.plan(step, ost.spec((8192, 1024), split=0), mesh=(256, 8), machine="h200-ib")
    print(plan.simulate())

The function is traced as for a call of a compiled one, with arrays of which only shapes, dtypes and layouts
are known. What it takes from around it counts by its shape, too."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError
from ostinato.ops.array.shape import split_of
from ostinato.ops.core.array import Array, Term
from ostinato.ops.core.garbage import seldom_collected
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Mesh
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.operand import FREE, Operand, Split, Wish
from ostinato.ops.core.spec import DTYPES, DTypeLike, Spec
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import misfit
from ostinato.planner.machine import Machine, resolve
from ostinato.planner.passes import layouts
from ostinato.planner.pipeline import make_plan, place_operands
from ostinato.planner.plan import Key, Numerics, Plan, Target
from ostinato.planner.policy import AS_WRITTEN, Precision, check_precision
from ostinato.runtime.engine import LocalEngine

from .arguments import Call, fixed_leaves, leaf
from .auto_precision import AUTO
from .compiled import CompiledFunction
from .offloading import fitting_offload
from .sessions import Session, _mesh, check_memory_limit, check_numerics
from .tracing import Traced, traced


class ArraySpec:
    """An array of which only this is known; made by `ost.spec`."""

    __slots__ = ("dtype", "shape", "split")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], split: Split) -> None:
        self.shape = shape
        self.dtype = dtype
        self.split = split

    def __repr__(self) -> str:
        split = f", split={self.split}" if self.split is not None else ""
        return f"spec({self.shape}, {self.dtype.name}{split})"


def spec(
    shape: int | Sequence[int], dtype: DTypeLike = np.float32, split: Split = None
) -> ArraySpec:
    """An array to plan with (`ost.plan`): its shape, its dtype, and how it lies on the workers, as in
    `ost.asarray(..., split=)`.

    >>> ost.spec((200, 16), "float32", split=0)
    spec((200, 16), float32, split=0)
    """
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    known = np.dtype(dtype)
    if known.name not in DTYPES or not all(
        isinstance(n, (int, np.integer)) and n >= 0 for n in extents
    ):
        got = f"shape {shape!r:.80} of {dtype!r:.40}"
        needed = "extents of 0 or more, and a dtype that arrays may have"
        raise misfit(ArgumentError, "spec", got=got, needed=needed)
    return ArraySpec(tuple(map(int, extents)), known, split)


class AbstractSession(Session):
    """A session in which arrays have no values, and nothing runs."""

    def hold(self, operand: Operand) -> Operand:
        known = operand.spec.layout
        split = next((s for s in known.splits if isinstance(s, int)), None) if known else None
        return self.like(operand.spec.shape, operand.spec.dtype, split)

    def hold_array(self, x: Array) -> Operand:
        return self.hold(Operand(x.spec))

    def hold_leaf(self, term: Term, k: int, operand: Operand) -> Operand:
        return self.hold(operand)

    def like(self, shape: tuple[int, ...], dtype: np.dtype[Any], split: Split) -> Operand:
        blocks = self.target.numerics == "any-workers"
        found = layouts.resolve(split, self.target.mesh, shape, blocks)
        return Operand(Spec(shape, dtype, found))


class AbstractEngine(LocalEngine):
    """The engine of who only plans."""

    def __init__(self, mesh: Mesh, device: str) -> None:
        self.device, self.mesh = device, mesh
        self.size, self.closed = math.prod(mesh), False
        self._lock = make_lock()
        self.launchers, self.workers, self.team = {}, [], None


@door
def plan(
    function: Callable[..., Any],
    *args: Any,
    mesh: int | tuple[int, ...] = 1,
    machine: Machine | str | os.PathLike[str] = "nominal",
    device: str | None = None,
    donate: Iterable[str | int] = (),
    static: Iterable[str | int] = (),
    numerics: Numerics | None = None,
    memory_limit: int | None = None,
    precision: str | Precision | None = None,
    **kwargs: Any,
) -> Plan:
    """The plan of a call of a function on a mesh of a machine; nothing has to be there.

    args, kwargs: as for the function, with `ost.spec(shape, dtype, split=)` for arrays. machine: a preset
    ("h100", "h200-ib", "dgx-v100", "cpu-10gbe", ...: `docs/machines.md`), a file that describes one, or a
    `Machine`; layouts are chosen for it. memory_limit: bytes per worker; if it is not given, none as in a
    session, but what the machine's workers have if the plan needs more. The others are as in `ost.compile`
    and `ost.connect`; a compiled function keeps its own.

    >>> ost.plan(lambda x: (x * x).sum(), ost.spec((1000,), "float32")).peak_bytes
    8036
    """
    model = resolve(machine)
    compiled = (
        function
        if isinstance(function, CompiledFunction)
        else CompiledFunction(function, donate=donate, static=static)
    )
    target = Target(
        _mesh((mesh,) if isinstance(mesh, int) else mesh, None),
        device or model.device,
        check_numerics("plan", numerics or compiled.numerics or "same-plan"),
        check_memory_limit("plan", compiled.memory_limit or memory_limit),
        precision=check_precision("plan", precision or _precision(compiled)),
        named=model,
        scratch_limit=compiled.scratch_limit,
        offload=fitting_offload("plan", compiled.offload, device or model.device),
    )
    with seldom_collected():
        return _planned(compiled, args, kwargs, target, target.mesh, False)


def _precision(function: CompiledFunction[Any, Any]) -> str:
    """Return the policy to plan for: what is chosen by rounding operands that exist cannot be."""
    return AS_WRITTEN if function.precision in (None, AUTO) else str(function.precision)


def _planned(
    function: CompiledFunction[Any, Any],
    args: Any,
    kwargs: Any,
    target: Target,
    mesh: Mesh,
    grow: bool,
    times: int = 1,
) -> Plan:
    """For another mesh; if arrays are to grow, along what they are split by the axes that did, and by the
    first one so many times more."""
    more = [n / m for n, m in zip(mesh, target.mesh, strict=True)] if grow else [1.0] * len(mesh)
    more[0] *= times
    wanted = replace(target, mesh=mesh)
    session = AbstractSession(AbstractEngine(mesh, target.device), wanted)
    leaves, call, found = traced_for_specs(
        function, args, kwargs, session, "plan", lambda x: _grown(x, more)
    )
    named = call.names
    names = [named[k] for k in found.inputs]
    places = tuple([found.inputs.index(k) for k in call.donated if k in found.inputs])
    graph, free = found.graph, list[int]()
    for n, k in enumerate(found.inputs):
        if isinstance(x := leaves[k], ArraySpec) and x.split == FREE:
            free.append(n)
    if free:
        ends = dict(zip(free, place_operands(graph, wanted, free), strict=True))
        inputs = [s.at(ends.get(n, s.layout)) for n, s in enumerate(graph.inputs)]
        graph = Graph(tuple(inputs), graph.nodes, graph.outputs)
    made = make_plan(Key(graph, wanted, places), tuple(names), function.name)
    if wanted.memory_limit is None and made.peak_bytes > wanted.machine.memory:
        wanted = replace(wanted, memory_limit=int(wanted.machine.memory))
        made = make_plan(Key(graph, wanted, places), tuple(names), function.name)
    return replace(made, again=partial(_planned, function, args, kwargs, target))


def traced_for_specs(
    function: CompiledFunction[Any, Any],
    args: Any,
    kwargs: Any,
    session: AbstractSession,
    who: str,
    shape_of: Callable[[ArraySpec], tuple[int, ...]] = lambda x: x.shape,
) -> tuple[list[Any], Call, Traced]:
    """Trace a call with specs for arrays: its leaves as they are given, the call, and its graph."""
    try:
        bound = function.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise misfit(ArgumentError, f"{who} of {function.name}", got=str(error)) from None
    bound.apply_defaults()
    leaves, structure = flatten(tuple(bound.arguments.values()))
    fixed = fixed_leaves(function, structure)
    held: list[Any] = []
    for k, x in enumerate(leaves):
        if isinstance(x, ArraySpec):
            held.append(session.like(shape_of(x), x.dtype, x.split))
        elif isinstance(x, Array):
            held.append(session.hold_array(x))
        else:
            held.append(leaf(x, function.name, k in fixed))
    call = Call(function, session, structure, held, fixed)
    return leaves, call, traced(function, call)[0]


def _grown(x: ArraySpec, more: Sequence[float]) -> tuple[int, ...]:
    """Its extents, where those along which it is split are so much larger, axis of the mesh by axis."""
    split = x.split.on(len(more)) if isinstance(x.split, Wish) else x.split
    if split == FREE:
        split = max(range(len(x.shape)), key=lambda d: x.shape[d]) if x.shape else None
    found = split_of(split, len(x.shape))
    splits = found if isinstance(found, tuple) else (found,) * len(more)
    extents = [float(n) for n in x.shape]
    for by, d in zip(more, splits, strict=False):
        if d is not None:
            extents[d] *= by
    return tuple(max(1, round(n)) if n else 0 for n in extents)
