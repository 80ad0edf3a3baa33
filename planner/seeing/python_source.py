"""Generated kernels as people read them: loops, what one turn computes, and the user's own lines."""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Iterator, Sequence

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec
from ostinato.ops.core.user_line import short
from ostinato.ops.cpu.fused import FUSED, WITH_PRODUCT
from ostinato.ops.cpu.jit.llvm import assembly as machine_code
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.loops import flat, nest_kernels
from ostinato.ops.cpu.loops.loop_kernel import loop_text
from ostinato.ops.cpu.loops.schedule import Nest, analyse_in_order
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE
from ostinato.ops.jit.epilogues import rest_of
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.loops import Loops, loops_over
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.planner.plan import Plan, export
from ostinato.planner.prediction import again
from ostinato.planner.title import title

ALL_TURNS = (*ONE_KERNEL.values(), WHOLE)


@export
def source(plan: Plan, llvm: bool, assembly: bool) -> str:
    """All kernels of a plan, as the worker with the largest parts runs them where operands lie
    contiguously."""
    kernels = list(_kernels(plan.program.graph))
    found = []
    for k, (graph, node) in enumerate(kernels, 1):
        if node.op in ALL_TURNS:
            listing = _loop(node)
        else:
            listing = _stages(node) if "rows" in node.kw else _listing(node)
        found.append(f"# kernel {k} of {len(kernels)}\n{listing}")
        text = _text(graph, node) if llvm or assembly else ""
        if llvm:
            found.append(text.strip())
        if assembly:
            found.append(machine_code(text).strip())
    if not found:
        why = why_not()
        return f"# no kernels: {why}" if why else "# no kernels: too little work, or no chains"
    return "\n\n".join(found)


def _kernels(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    """Iterate over kernels, and those of bodies."""
    for node in graph.nodes:
        if node.op in (*FUSED, *ALL_TURNS):
            yield graph, node
            continue
        for _, body in node.subgraphs():
            yield from _kernels(body)


def _text(graph: Graph, node: Node) -> str:
    if node.op in ALL_TURNS:
        specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
        return loop_text(node, tuple(s.bare for s in specs))
    if "rows" in node.kw:
        return nest_kernels.nest_module(_nest(node))
    node = _behind(node)
    return flat.kernel_text(node.kw["body"], _loops(node))


# -- loops of turns ------------------------------------------------------------------------
def _loop(node: Node) -> str:
    """Its body's operations, each of which makes what elements it is asked for."""
    bodies = [f"# {name}\n{body}" for name, body in node.subgraphs()]
    return "\n".join([f"# {title(node)}{again(node)}", *bodies])


# -- stages --------------------------------------------------------------------------------
def _nest(node: Node) -> Nest:
    """As it is of contiguous operands."""
    body: Graph = node.kw["body"]
    found = analyse_in_order(**node.kw, shapes=[_part(s) for s in (*body.inputs, *body.out_specs)])
    assert found is not None, "it was one when the plan was made"
    return found


def _stages(node: Node) -> str:
    """Write the stages that make each element, where its indices are known."""
    nest = _nest(node)
    body, rows = nest.body, ", ".join(_counter(x) for x in nest.rows)
    each = f"{nest.lanes} of {_counter(nest.lane)}" if nest.across else f"1 of {rows}"
    lines = [f"# in stages, units of {each}; lanes run along {_counter(nest.lane)}"]
    names = [f"x{k}{_indexed(nest, k)}" for k in range(nest.operands)]
    lines += _operands(body)
    lines += [f"# y{k}: {s.dtype.name}{list(_part(s))}" for k, s in enumerate(body.out_specs)]
    lines += [f"for {_counter(x)} in range({nest.extents[x]}):" for x in nest.rows[:1]]
    lines += [f"    for {_counter(x)} in range({nest.extents[x]}):" for x in nest.rows[1:]]
    indent = "    " * (2 if len(nest.rows) > 1 else 1)
    written = {v: f"y{k}{_indexed(nest, v)}" for k, v in enumerate(body.outputs)}
    before = ""
    for k, made in enumerate(body.nodes):
        ins, op = [names[u] for u in made.inputs], OPS[made.op]
        if made.line and made.line != before and not op.element.source:
            lines.append(f"{indent}# {_of_user(made.line)}")
            before = made.line
        for v in body.outs(k):
            if op.rearranges:
                names.append(ins[0])
            elif op.element.source == "value":
                names.append(repr(made.kw["value"]))
            elif op.element.source:
                label = nest.dims[v][made.kw["axis"]]
                names.append("0" if label is None else _counter(label))
            else:
                names.append(f"t{v}{_indexed(nest, v)}")
                text = _staged(nest, v, made, ins)
                if text:
                    lines.append(f"{indent}{written.get(v, names[v])} {text}")
                names[v] = written.get(v, names[v])
    return "\n".join(lines)


def _indexed(nest: Nest, v: int) -> str:
    return f"[{', '.join(_counter(x) for x in nest.labels(v))}]"


def _staged(nest: Nest, v: int, node: Node, ins: Sequence[str]) -> str:
    """How a value is made; empty for what comes with its neighbour."""
    op = OPS[node.op]
    if v in nest.reductions:
        assert op.reduce is not None
        r = nest.reductions[v]
        over = ", ".join(_counter(x) for x in sorted(r.over))
        term = op.reduce.element.format(*ins)
        name = "mean" if len(node.specs) == 3 or op.reduce.divisor else r.kind
        return f"= {name} over {over or 'nothing'} of {term}"
    if op.reduce:
        if len(node.specs) == 2:
            return "= its position"
        return "= the squared deviations from it" if v - 1 in nest.reductions else "= their number"
    if op.moves.places:
        label = nest.dims[node.inputs[0]][node.kw["axis"]]
        place = f"{_counter(label) if label is not None else '0'} = {ins[1]}"
        if op.moves.places == "read":
            return f"= {ins[0]} at {place}"
        return f"= {ins[0]}, with {ins[2]} added at {place}"
    return f"= {_scalar(node, ins)}"


# -- loops ---------------------------------------------------------------------------------
def _part(spec: Spec) -> Shape:
    return spec.shape if spec.layout is None else tuple(spec.layout.largest(spec.shape))


def _reductions(body: Graph) -> list[Node]:
    return [n for n in body.nodes if OPS[n.op].reduce]


def _behind(node: Node) -> Node:
    """Return the kernel without the product that it begins with, whose first operand is the
    product."""
    if node.op not in WITH_PRODUCT:
        return node
    return Node("fused", (), (("body", rest_of(node.kw["body"])[0]),), node.specs, node.line)


def _loops(node: Node) -> Loops:
    """Merge the axes of a kernel over contiguous operands into loops."""
    body: Graph = node.kw["body"]
    sums = _reductions(body)
    axes = len(combines(body, sums[0])[1]) if sums else 0
    shape = _part(body.specs[sums[0].inputs[0]] if sums else node.specs[0])
    reduced = {body.starts[body.nodes.index(n)] for n in sums}
    strides, numbers = [], numbers_in(body)
    for v in (*range(len(body.inputs)), *body.outputs):
        size = 1 if v in numbers else body.specs[v].dtype.itemsize
        lies = _contiguous(_part(body.specs[v]), size)
        if v in reduced:
            strides.append((*lies, *(0,) * axes))
        else:
            strides.append((*(0,) * (len(shape) - len(lies)), *lies))
    found = loops_over(shape, strides, len(shape) - axes if axes else -1)
    if axes and math.prod(found.extents[:-1]) == 1:  # one row: in blocks
        return Loops(found.extents[-1:], tuple(s[-1:] for s in found.strides))
    return found


def _contiguous(shape: Shape, size: int) -> list[int]:
    """Strides; 0 along what is repeated."""
    found, step = list[int](), size
    for n in reversed(shape):
        found.append(step if n > 1 else 0)
        step *= n
    return found[::-1]


# -- text ----------------------------------------------------------------------------------
def _listing(node: Node) -> str:
    ahead = _product(node) if node.op in WITH_PRODUCT else []
    node = _behind(node)
    body, loops = node.kw["body"], _loops(node)
    places = [_place(steps) for steps in loops.strides]
    names = [f"x{k}{places[k]}" for k in range(len(body.inputs))]
    lines = ahead
    lines += _operands(body)
    lines += [f"# y{k}: {s.dtype.name}{list(_part(s))}" for k, s in enumerate(body.out_specs)]
    indent = ""
    for d, n in enumerate(loops.extents):
        lines.append(f"{indent}for {_counter(d)} in range({n}):")
        indent += "    "
    written = {v: f"y{k}{places[len(names) + k]}" for k, v in enumerate(body.outputs)}
    before = ""
    for node, v in zip(body.nodes, body.starts, strict=True):
        ins = [names[u] for u in node.inputs]
        if node.op == "constant":
            names.append(repr(node.kw["value"]))
            continue
        if node.line and node.line != before:
            lines.append(f"{indent}# {_of_user(node.line)}")
            before = node.line
        if OPS[node.op].reduce:
            names.append(written[v])
            lines.append(f"{indent}{_reduced(body, node, written[v], ins[0])}")
            continue
        names.append(f"t{v}")
        lines.append(f"{indent}t{v} = {_scalar(node, ins)}")
        if v in written:
            lines.append(f"{indent}{written[v]} = t{v}")
    return "\n".join(lines)


def _operands(body: Graph) -> list[str]:
    """Describe each operand; element numbers are known from where they are."""
    counted = numbers_in(body)
    return [
        f"# x{k}: {'numbers of elements, ' if k in counted else s.dtype.name}{list(_part(s))}"
        for k, s in enumerate(body.inputs)
    ]


def _product(node: Node) -> list[str]:
    """Describe the product, which stands above the loops."""
    body: Graph = node.kw["body"]
    (made,) = (n for n in body.nodes if OPS[n.op].product)
    a, b = ("x".join(map(str, _part(body.specs[v]))) for v in made.inputs)
    return [f"# x0 is a product, {a} by {b}, of which each block of rows is followed at once by"]


def _counter(d: int) -> str:
    return "ijklmnop"[d] if d < 8 else f"i{d}"


def _place(steps: Sequence[int]) -> str:
    moving = [_counter(d) for d, step in enumerate(steps) if step]
    return f"[{', '.join(moving)}]" if moving else "[0]"


def _scalar(node: Node, ins: Sequence[str]) -> str:
    if OPS[node.op].moves.converts:
        return f"{node.specs[0].dtype.name}({ins[0]})"
    return OPS[node.op].scalar.format(*ins)


def _reduced(body: Graph, node: Node, target: str, value: str) -> str:
    how, (kind, _) = OPS[node.op].reduce, combines(body, node)
    assert how is not None
    value = how.element.format(value)
    if how.divisor and node.kw[how.divisor] != 1:
        value += f" / {node.kw[how.divisor]}"
    if kind == "sum":
        return f"{target} += {value}"
    return f"{target} = {MONOIDS[kind].scalar.format(target, value)}"


def _of_user(line: str) -> str:
    """Where it stands, and what stands there."""
    path, _, number = line.rpartition(":")
    known = number.isdecimal() and len(number) < 9 and _runs_here(path)
    text = linecache.getline(path, int(number)).strip() if known else ""
    return f"{short(line)}  {text}".rstrip()


def _runs_here(path: str) -> bool:
    """Whether this process runs that file (or cell): a plan from elsewhere may name any."""
    if path in linecache.cache:
        return True
    files = (getattr(m, "__file__", None) for m in list(sys.modules.values()))
    return os.path.abspath(path) in {os.path.abspath(f) for f in files if f}
