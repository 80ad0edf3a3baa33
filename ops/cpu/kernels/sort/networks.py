"""Short lines in order side by side, one in each lane of a vector: pairs of rows are exchanged where the second
key is the smaller one. Which pairs depends on their number only (Knuth, 5.2.2, algorithm M)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ostinato.ops.core.spec import int64
from ostinato.ops.cpu.jit.emitter import Code, places
from ostinato.ops.cpu.jit.parallel import TABLES, around

from .keys import BODY, NOTHING, KeyKind, SortKeys


class _Lanes(SortKeys):
    """The functions of a module."""

    def lanes(self) -> str:
        """A turn is as many lines as vectors have lanes; the last one comes again in lanes that are left."""
        code, lanes, kind = self.begin(), self.kind.lanes, self.kind
        rows = code.let(f"and i64 {code.sum('%n', str(lanes - 1))}, {-lanes}")
        from_, to = (code.name(name) for name in ("from", "to"))
        code.entry += [f"  {at} = alloca [{lanes} x ptr]" for at in (from_, to)]
        keys = code.let("inttoptr i64 %own to ptr")
        beside = code.let(f"getelementptr i8, ptr {keys}, i64 {code.times(rows, str(kind.row))}")
        last = code.sum("%lines", "-1")
        with code.loop("%lo", "%hi") as turn:
            first = code.times(turn, str(lanes))
            with code.loop("0", str(lanes)) as lane:
                line = code.least(code.sum(first, lane), last)
                for table, start in zip((from_, to), code.begins(line, (0, 1)), strict=True):
                    at = code.let(f"getelementptr ptr, ptr {table}, i64 {lane}")
                    code.add(f"store ptr {start}, ptr {at}")
            code.add(f"call void @take(ptr {from_}, i64 %step_x, i64 %n, ptr {beside})")
            with code.loop("0", "%n") as i, code.loop("0", str(lanes)) as lane:
                k = code.sum(code.times(i, str(lanes)), lane)
                number = code.let(f"getelementptr {self.key}, ptr {beside}, i64 {k}")
                self.widen(code, self.read(code, number, i), keys, k)
            code.add(f"call void @exchange(ptr {keys}, i64 %n)")
            with code.loop("0", "%first") as i, code.loop("0", str(lanes)) as lane:
                k = code.sum(code.times(i, str(lanes)), lane)
                made = self.narrow(code, keys, k)
                kept = "i64" if kind.places else self.key
                at = code.let(f"getelementptr {kept}, ptr {beside}, i64 {k}")
                code.add(f"store {kept} {made}, ptr {at}")
            code.add(f"call void @give(ptr {to}, i64 %step_out, i64 %first, ptr {beside})")
        return self.function(BODY, code)

    @property
    def lane(self) -> str:
        """Return the type of a key in a vector."""
        return "i64" if self.kind.places or self.kind.bits == 64 else "i32"

    def widen(self, code: Code, found: Sequence[str], keys: str, k: str) -> None:
        """A key, with its place, into a lane; of two whole numbers the second ones are behind all others."""
        one = found[0]
        if self.lane != self.one:
            one = code.let(f"zext {self.one} {one} to {self.lane}")
        code.add(f"store {self.lane} {one}, ptr {self.lane_at(code, keys, k)}")
        if len(found) == 2:
            code.add(f"store i64 {found[1]}, ptr {self.lane_at(code, keys, k, '%n')}")

    def lane_at(self, code: Code, keys: str, k: str, rows: str = "") -> str:
        if rows:
            k = code.sum(k, code.times(rows, str(self.kind.lanes)))
        return code.let(f"getelementptr {self.lane}, ptr {keys}, i64 {k}")

    def narrow(self, code: Code, keys: str, k: str) -> str:
        """The number, or its place."""
        kind = self.kind
        if kind.places:
            at = self.lane_at(code, keys, k, "%n" if kind.bits == 64 else "")
            made = code.let(f"load i64, ptr {at}")
            return made if kind.bits == 64 else code.let(f"and i64 {made}, {(1 << 32) - 1}")
        made = code.let(f"load {self.lane}, ptr {self.lane_at(code, keys, k)}")
        if self.lane != self.key:
            made = code.let(f"trunc {self.lane} {made} to {self.key}")
        return self.number_of(code, made)

    def exchange(self) -> str:
        """Pairs of rows, the smaller keys to the first one; which pairs depends on their number only."""
        code = Code()
        p, q, r, d = (code.cell(int64) for _ in range(4))
        rows = code.let("call i64 @llvm.ctlz.i64(i64 %rows, i1 false)")
        self.declared.add("declare i64 @llvm.ctlz.i64(i64, i1)")
        top = code.let(f"lshr i64 {-(1 << 63)}, {rows}")
        code.add(f"store i64 {top}, ptr {p}")
        with code.until() as ends:
            step = code.let(f"load i64, ptr {p}")
            ends(code.let(f"icmp eq i64 {step}, 0"))
            for cell, value in ((q, top), (r, "0"), (d, step)):
                code.add(f"store i64 {value}, ptr {cell}")
            with code.until() as ends_here:
                far, rest = (code.let(f"load i64, ptr {cell}") for cell in (d, r))
                with code.loop("0", code.let(f"sub i64 %n, {far}")) as i:
                    bit = code.let(f"and i64 {i}, {step}")
                    with code.when(code.let(f"icmp eq i64 {bit}, {rest}")):
                        self.pair(code, i, code.sum(i, far))
                wide = code.let(f"load i64, ptr {q}")
                ends_here(code.let(f"icmp eq i64 {wide}, {step}"))
                code.add(f"store i64 {code.let(f'sub i64 {wide}, {step}')}, ptr {d}")
                code.add(f"store i64 {code.let(f'lshr i64 {wide}, 1')}, ptr {q}")
                code.add(f"store i64 {step}, ptr {r}")
            code.add(f"store i64 {code.let(f'lshr i64 {step}, 1')}, ptr {p}")
        head = (
            "define internal void @exchange(ptr %keys, i64 %n) {\nentry:\n  %rows = sub i64 %n, 1"
        )
        return self.function(head, code)

    def pair(self, code: Code, first: str, second: str) -> None:
        lanes = self.kind.lanes
        kind = f"<{lanes} x {self.lane}>"
        ats = [self.lane_at(code, "%keys", code.times(i, str(lanes))) for i in (first, second)]
        a, b = (code.let(f"load {kind}, ptr {at}, align 8") for at in ats)
        less = code.let(f"icmp ule {kind} {a}, {b}")
        flags = f"<{lanes} x i1>"
        if self.kind.places and self.kind.bits == 64:
            far = [
                code.sum(code.times(i, str(lanes)), code.times("%n", str(lanes)))
                for i in (first, second)
            ]
            places = [self.lane_at(code, "%keys", k) for k in far]
            i, j = (code.let(f"load {kind}, ptr {at}, align 8") for at in places)
            sooner = code.let(f"icmp ult {kind} {i}, {j}")
            same = code.let(f"icmp eq {kind} {a}, {b}")
            below = code.let(f"icmp ult {kind} {a}, {b}")
            less = code.let(f"or {flags} {below}, {code.let(f'and {flags} {same}, {sooner}')}")
            for at, (one, other) in zip(places, ((i, j), (j, i)), strict=True):
                made = code.let(f"select {flags} {less}, {kind} {one}, {kind} {other}")
                code.add(f"store {kind} {made}, ptr {at}, align 8")
        for at, (one, other) in zip(ats, ((a, b), (b, a)), strict=True):
            made = code.let(f"select {flags} {less}, {kind} {one}, {kind} {other}")
            code.add(f"store {kind} {made}, ptr {at}, align 8")

    def across(self, name: str, size: int) -> str:
        """Elements of so many bytes of lines into rows of their own (`take`), or back (`give`)."""
        code, lanes, takes = Code(), self.kind.lanes, name == "take"
        element = f"i{8 * size}"
        vector = f"<{lanes} x {element}>"
        starts = []
        for k in range(lanes):
            at = code.let(f"getelementptr ptr, ptr %lines, i64 {k}")
            starts.append(code.let(f"load ptr, ptr {at}"))
        beside = "true"
        first = code.let(f"ptrtoint ptr {starts[0]} to i64")
        for k, start in enumerate(starts):
            at = code.let(f"ptrtoint ptr {start} to i64")
            same = code.let(f"icmp eq i64 {at}, {code.sum(first, str(k * size))}")
            beside = code.let(f"and i1 {beside}, {same}")
        row = f"getelementptr {vector}, ptr %rows, i64"
        with code.when(beside), code.loop("0", "%n") as i:
            here = code.let(f"getelementptr i8, ptr {starts[0]}, i64 {code.times(i, '%step')}")
            there = code.let(f"{row} {i}")
            a, b = (here, there) if takes else (there, here)
            made = code.let(f"load {vector}, ptr {a}, align {size}")
            code.add(f"store {vector} {made}, ptr {b}, align {size}")
        end = code.let(f"select i1 {beside}, i64 0, i64 %n")
        if self.kind.dense:
            with code.loop("0", end, step=lanes) as i:
                left = code.let(f"sub i64 %n, {i}")
                ats = [code.let(f"getelementptr {element}, ptr {s}, i64 {i}") for s in starts]
                theirs = [code.let(f"{row} {code.sum(i, str(k))}") for k in range(lanes)]
                mask = code.inside(left, lanes)
                if takes:
                    square = [code.masked_load(at, vector, mask) for at in ats]
                else:
                    square = [code.let(f"load {vector}, ptr {at}, align {size}") for at in theirs]
                for k, one in enumerate(code.turned(square, vector)):
                    if takes:
                        code.add(f"store {vector} {one}, ptr {theirs[k]}, align {size}")
                    else:
                        code.masked_store(one, ats[k], vector, mask)
        else:
            with code.loop("0", end) as i:
                skip = code.times(i, "%step")
                for k, start in enumerate(starts):
                    here = code.let(f"getelementptr i8, ptr {start}, i64 {skip}")
                    at = code.sum(code.times(i, str(lanes)), str(k))
                    there = code.let(f"getelementptr {element}, ptr %rows, i64 {at}")
                    a, b = (here, there) if takes else (there, here)
                    made = code.let(f"load {element}, ptr {a}, align {size}")
                    code.add(f"store {element} {made}, ptr {b}, align {size}")
        head = f"define internal void @{name}(ptr %lines, i64 %step, i64 %n, ptr %rows) {{\nentry:"
        return self.function(head, code)


@lru_cache(64)
def lanes_text(kind: KeyKind) -> str:
    writer, size = _Lanes(kind), kind.dtype.itemsize
    functions = [writer.across("take", size), writer.across("give", 8 if kind.places else size)]
    functions += [writer.exchange(), writer.lanes(), NOTHING]
    return "\n".join([*sorted(writer.declared), TABLES, places(2), *functions, around(2)])
