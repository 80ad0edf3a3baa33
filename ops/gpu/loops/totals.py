"""What threads have combined so far, and how those of a warp and of a block put theirs together: in pairs, in
the same order each time.

    sum, max, min     a total; of sums of floats also what rounding has lost (Neumaier)
    argmin, argmax    the best and where it stands; of equals the first one
    moments           how many, their mean and squared deviations, put together by Chan's formula"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import DType, float64, int64
from ostinato.ops.jit.combining import (
    chan,
    compensated,
    first_of,
    has_order,
    joined,
    moved,
    ordered,
    start_of,
    unordered,
    whole_of,
)
from ostinato.ops.jit.values import Value, cast, fma, where

from ..jit.lines import CudaLines, c_type, literal
from .schedule import THREADS, WARP

APART = 8 * THREADS  # bytes of one register of all threads


@dataclass(frozen=True, slots=True)
class Total:
    """Registers in which something is combined; their names end with `n`."""

    kind: str
    dtype: DType
    n: str
    keeps: bool = True  # what rounding loses, of sums of floats
    places: DType = int64  # of the best

    @property
    def is_ordered(self) -> bool:
        """Whether the best is found among whole numbers."""
        return has_order(self.kind, self.dtype)

    @property
    def registers(self) -> list[tuple[str, DType, str]]:
        """Their names, their dtypes, and what they begin with."""
        if self.kind == "moments":
            names = ("tot", "lost", "seen")
            return [(f"{x}{self.n}", float64, literal(0, float64)) for x in names]
        dtype, first = self.dtype, start_of(self.kind, self.dtype)
        if self.is_ordered:
            dtype = whole_of(self.dtype)
            first = first_of(self.kind, dtype)
        found = [(f"tot{self.n}", dtype, literal(first, dtype))]
        if MONOIDS[self.kind].width == 2:
            found.append((f"lost{self.n}", self.places, literal(0, self.places)))
        elif self.keeps and self.kind == "sum" and dtype.kind == "f":
            found.append((f"lost{self.n}", dtype, literal(0, dtype)))
        return found

    def declared(self) -> list[str]:
        return [f"{c_type(dtype)} {name} = {first};" for name, dtype, first in self.registers]

    def values(self, lines: CudaLines, names: Sequence[str] = ()) -> list[Value]:
        own = self.registers
        names = names or [name for name, _, _ in own]
        return [Value(lines, x, dtype) for x, (_, dtype, _) in zip(names, own, strict=True)]

    def set(self, lines: CudaLines, made: Sequence[Value]) -> None:
        own = [name for name, _, _ in self.registers]
        lines.text += [f"{name} = {x.name};" for name, x in zip(own, made, strict=True)]

    def add(self, lines: CudaLines, more: Value, place: Value | None = None) -> None:
        """One more element; of the best, it stands at this place, which is behind those before."""
        now = self.values(lines)
        if MONOIDS[self.kind].width == 2:
            assert place is not None
            self.set(lines, self._better(now, [more, place], behind=True))
        elif self.kind == "moments":
            self.set(lines, self._one_more(lines, now, more))
        elif len(now) == 2:
            self.set(lines, compensated(now[0], now[1], more))
        else:
            more = ordered(self.kind, more) if self.is_ordered else more
            self.set(lines, [joined(self.kind, now[0], more)])

    # -- of moments, several elements at once
    def opened(self) -> list[str]:
        """Declare what is added up of elements: how far they are from the mean, and the squares of
        that."""
        if self.kind != "moments":
            return []
        near = f"fabs(tot{self.n}) < {literal(math.inf, float64)} ? tot{self.n} : 0.0"
        return [f"const double near{self.n} = {near};", f"double off{self.n} = 0, far{self.n} = 0;"]

    def take(self, lines: CudaLines, more: Value) -> None:
        """One of these."""
        off = cast(more, float64) - Value(lines, f"near{self.n}", float64)
        added, squares = (Value(lines, f"{x}{self.n}", float64) for x in ("off", "far"))
        made = added + off, fma(off, off, squares)
        lines.text += [f"off{self.n} = {made[0].name};", f"far{self.n} = {made[1].name};"]

    def close(self, lines: CudaLines, count: str) -> None:
        """Put them, which are so many, to those before. Infinite means stay as sums would."""
        mean, square, seen = self.values(lines)
        added, squares = (Value(lines, f"{x}{self.n}", float64) for x in ("off", "far"))
        both = seen + Value(lines, count, float64)
        moves = added / both
        new = where(abs(mean) < math.inf, mean + moves, mean + added)
        self.set(lines, [new, square + (squares - added * moves), both])

    def merge(self, lines: CudaLines, names: Sequence[str]) -> None:
        """Merge what others have combined."""
        now, more = self.values(lines), self.values(lines, names)
        if MONOIDS[self.kind].width == 2:
            self.set(lines, self._better(now, more))
        elif self.kind == "moments":
            mean, square, seen = now
            one = lines.constant(1, float64)
            made = chan(seen, mean, square, more[2], more[0], more[1], one)
            some, any_before = more[2] > 0, seen > 0
            both = [
                where(some, where(any_before, x, new), old)
                for x, new, old in zip(made, more[:2], now[:2], strict=True)
            ]
            self.set(lines, [*both, seen + more[2]])
        elif len(now) == 2:
            total, lost = compensated(now[0], now[1], more[0])
            self.set(lines, [total, lost + more[1]])
        else:
            self.set(lines, [joined(self.kind, now[0], more[0])])

    def found(self, lines: CudaLines) -> list[Value]:
        """Return what has been combined; of moments, the mean, the squared deviations, and how
        many.
        """
        now = self.values(lines)
        if MONOIDS[self.kind].width == 2:
            return now
        if self.kind == "moments":
            return [cast(now[0], self.dtype), cast(now[1], self.dtype), now[2]]
        if len(now) == 2:
            return [now[0] + now[1]]
        return [unordered(now[0]) if self.is_ordered else now[0]]

    def _better(
        self, now: Sequence[Value], more: Sequence[Value], behind: bool = False
    ) -> list[Value]:
        """The better one of two, NaN first; of equals that which stands first, the first one if the other is
        `behind` it."""
        (best, place), (x, other) = now, more
        wins = x > best if MONOIDS[self.kind].order == "max" else x < best
        is_float = x.dtype.kind == "f"
        if is_float:
            wins = (wins | (x != x)) & (best == best)
        if not behind:
            same = x == best
            same = same | ((x != x) & (best != best)) if is_float else same
            wins = wins | (same & (other < place))
        return [where(wins, x, best), where(wins, other, place)]

    def _one_more(self, lines: CudaLines, now: Sequence[Value], more: Value) -> list[Value]:
        """Welford's step."""
        mean, square, seen = now
        nth, wide = seen + 1.0, cast(more, float64)
        off = wide - mean
        new = moved(mean, off, 1.0 / nth, wide)
        return [new, fma(off, wide - new, square), nth]


# -- together ------------------------------------------------------------------------------------
def reduce_warp(
    lines: CudaLines, totals: Sequence[Total], lanes: int = WARP, apart: int = 1
) -> list[str]:
    """Lane 0 has the total of a warp's first `lanes`, which meet in pairs; or the lanes below `apart` have
    those of all lanes that are so far apart."""
    inner = CudaLines()
    inner.count, inner.declared = lines.count, lines.declared
    for t in totals:
        others = []
        for name, dtype, _ in t.registers:
            inner.text.append(f"const {c_type(dtype)} other_{name} = from_lane({name}, far);")
            others.append(f"other_{name}")
        t.merge(inner, others)
    lines.count = inner.count
    head = f"for (int far = {lanes // 2}; far >= {apart}; far /= 2) {{"
    return ["#pragma unroll", head, *inner.text, "}"]


def reduce_block(
    lines: CudaLines, totals: Sequence[Total], again: bool = False, threads: int = THREADS
) -> list[str]:
    """The first lane of each warp has the total of all warps, whose first lanes had theirs. `again`: there is
    shared memory for it, which somebody may still read."""
    warps, warp, lane = threads // WARP, f"threadIdx.x / {WARP}", f"threadIdx.x % {WARP}"
    registers = [one for t in totals for one in t.registers]
    code = ["__syncthreads();"] if again else []
    for name, dtype, _ in () if again else registers:
        code.append(f"__shared__ {c_type(dtype)} made_{name}[{warps}];")
    code += [
        f"if (threadIdx.x % {WARP} == 0) made_{name}[{warp}] = {name};" for name, *_ in registers
    ]
    code.append("__syncthreads();")
    for name, _, first in registers:
        code.append(f"{name} = {lane} < {warps} ? made_{name}[{lane}] : {first};")
    return [*code, *reduce_warp(lines, totals, warps)]


def merge_columns(lines: CudaLines, total: Total) -> list[str]:
    """The first warp has the totals of all warps, lane by lane; those of others lie in `apart`."""
    code, names = list[str](), list[str]()
    inner = CudaLines()
    inner.count = lines.count
    for n, (name, dtype, _) in enumerate(total.registers):
        kind = c_type(dtype)
        at = f"(({kind}*)(apart + {n * APART}))"
        code.append(f"{at}[threadIdx.x] = {name};")
        inner.text.append(f"const {kind} other_{name} = {at}[{WARP} * k + threadIdx.x];")
        names.append(f"other_{name}")
    total.merge(inner, names)
    lines.count = inner.count
    head = f"if (threadIdx.x < {WARP}) for (int k = 1; k < {THREADS // WARP}; ++k) {{"
    return [*code, "__syncthreads();", head, *inner.text, "}"]


def merge_warps(
    lines: CudaLines, totals: Sequence[Total], columns: int, leave: Callable[[str], list[str]]
) -> list[str]:
    """The first `columns` lanes of each warp have its totals, all of one kind; 8 threads put those of all warps
    together. `leave`: what is done with the result, which is in the first total's registers, of the column that
    it is told, counted with the totals of each lane side by side. Others that have as many use the same shared
    memory."""
    warps, each, code = THREADS // WARP, len(totals), ["__syncthreads();"]
    entries = columns * each * warps
    first, names = totals[0], list[str]()
    for k, (_, dtype, _) in enumerate(first.registers):
        names.append(f"warps{k}_{c_type(dtype)}_{entries}")
        lines.declared.add(f"__shared__ {c_type(dtype)} {names[-1]}[{entries}];")
    code.append(f"if (threadIdx.x % {WARP} < {columns}) {{")
    for j, total in enumerate(totals):
        at = f"({each} * (threadIdx.x % {WARP}) + {j}) * {warps} + threadIdx.x / {WARP}"
        code += [
            f"{name}[{at}] = {own};" for name, (own, *_) in zip(names, total.registers, strict=True)
        ]
    code += ["}", "__syncthreads();"]
    whole = -(-entries // WARP) * WARP  # of a warp, all threads meet
    code.append(f"for (u32 i = threadIdx.x; i < {whole}; i += {THREADS}) {{")
    code += [
        f"{own} = {name}[i % {entries}];"
        for name, (own, *_) in zip(names, first.registers, strict=True)
    ]
    code += reduce_warp(lines, [first], warps)
    code.append(f"if (i < {entries} && i % {warps} == 0) {{")
    return [*code, *leave(f"(i / {warps})"), "}", "}"]
