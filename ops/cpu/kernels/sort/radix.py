"""Keys in order digit by digit, the lowest first: what is equal stays in the order in which it came. A line at
a time; or the parts of a long one, whose digits are counted first, so that each part knows where its keys
belong. Of a line of which only the first ones are wanted, the others are left out before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ostinato.ops.core.spec import int64
from ostinato.ops.cpu.jit.emitter import Code, places
from ostinato.ops.cpu.jit.parallel import TABLES, around

from .keys import BODY, DIGIT, END, NOTHING, KeyKind, SortKeys

MAX_INSERTION_KEYS = 48  # keys that are put in their places one by one
_PARTS = (
    *("parts", "threads", "n", "first", "step_x", "step_out", "at_x", "at_out", "keys", "others"),
    *("counts", "state", "shift"),
)


class _Radix(SortKeys):
    """The functions of a module."""

    # -- a line
    def insert(self) -> str:
        """A few keys, each put in its place among those before it."""
        code = Code()
        with code.loop("1", "%n") as i:
            new = self.load(code, "%keys", i)
            cell = code.cell(int64)
            code.add(f"store i64 {i}, ptr {cell}")
            with code.until() as done:
                hole = code.let(f"load i64, ptr {cell}")
                done(code.let(f"icmp eq i64 {hole}, 0"))
                before = code.sum(hole, "-1")
                other = self.load(code, "%keys", before)
                done(code.let(f"icmp ule {self.one} {other[0]}, {new[0]}"))
                self.store(code, other, "%keys", hole)
                code.add(f"store i64 {before}, ptr {cell}")
            self.store(code, new, "%keys", code.let(f"load i64, ptr {cell}"))
        return self.function("define internal void @insert(ptr %keys, i64 %n) {\nentry:", code)

    def counted(self, code: Code, counts: str, digit: str) -> str:
        """How many keys had this digit before this one, or where that belongs."""
        at = code.let(f"getelementptr i64, ptr {counts}, i64 {digit}")
        before = code.let(f"load i64, ptr {at}")
        code.add(f"store i64 {code.sum(before, '1')}, ptr {at}")
        return before

    def order(self) -> str:
        """Keys digit by digit, but for those digits that all have in common; where they are then."""
        code, digits = Code(), self.kind.dtype.itemsize
        cells = [code.name("cell") for _ in "ab"]
        for cell, value in zip(cells, ("%keys", "%others"), strict=True):
            code.entry.append(f"  {cell} = alloca ptr")
            code.add(f"store ptr {value}, ptr {cell}")
        short = code.let(f"icmp sle i64 %n, {MAX_INSERTION_KEYS}")
        with code.when(short):
            code.add("call void @insert(ptr %keys, i64 %n)")
        with code.when(code.let(f"xor i1 {short}, true")):
            code.clear("%counts", str(8 * DIGIT * digits))
            with code.loop("0", "%n") as i:
                found = self.load(code, "%keys", i)
                for k in range(digits):
                    digit = self.digit(code, found, str(self.kind.shift(k)))
                    self.counted(code, "%counts", code.sum(digit, str(DIGIT * k)))
            with code.loop("0", str(digits)) as level:
                counts = code.let(
                    f"getelementptr i64, ptr %counts, i64 {code.times(level, str(DIGIT))}"
                )
                shift = code.sum(code.times(level, "8"), str(self.kind.shift(0)))
                from_, to = (code.let(f"load ptr, ptr {cell}") for cell in cells)
                digit = self.digit(code, self.load(code, from_, "0"), shift)
                at = code.let(f"getelementptr i64, ptr {counts}, i64 {digit}")
                many = code.let(f"load i64, ptr {at}")
                with code.when(code.let(f"icmp ne i64 {many}, %n")):
                    total = code.cell(int64)
                    code.add(f"store i64 0, ptr {total}")
                    with code.loop("0", str(DIGIT)) as b:
                        self.summed(code, total, counts, b)
                    with code.loop("0", "%n") as i:
                        found = self.load(code, from_, i)
                        place = self.counted(code, counts, self.digit(code, found, shift))
                        self.store(code, found, to, place)
                    code.add(f"store ptr {to}, ptr {cells[0]}")
                    code.add(f"store ptr {from_}, ptr {cells[1]}")
        where = code.let(f"load ptr, ptr {cells[0]}")
        head = "define internal ptr @order(ptr %keys, ptr %others, i64 %n, ptr %counts) {\nentry:"
        return self.function(head, code, f"ptr {where}")

    def summed(self, code: Code, total: str, counts: str, index: str) -> None:
        """A count becomes the sum of those before it."""
        at = code.let(f"getelementptr i64, ptr {counts}, i64 {index}")
        many, before = code.let(f"load i64, ptr {at}"), code.let(f"load i64, ptr {total}")
        code.add(f"store i64 {before}, ptr {at}")
        code.add(f"store i64 {code.sum(before, many)}, ptr {total}")

    def keep(self) -> str:
        """The keys up to the last one that is wanted, or a little more; how many. What is wanted is found
        by the two highest digits."""
        code = Code()
        last = self.kind.dtype.itemsize - 1
        prefix, least = code.cell(int64), code.cell(int64)
        code.add(f"store i64 0, ptr {prefix}")  # digits that the last wanted key has
        code.add(f"store i64 0, ptr {least}")  # keys before all that have these
        levels = range(min(2, last + 1))
        for level in levels:
            shift = str(self.kind.shift(last - level))
            code.clear("%counts", str(8 * DIGIT))
            known = code.let(f"load i64, ptr {prefix}")
            with code.loop("0", "%n") as i:
                digit = self.digit(code, self.load(code, "%keys", i), shift, DIGIT << 8 * level)
                low = code.let(f"and i64 {digit}, {DIGIT - 1}")
                same = code.let(f"icmp eq i64 {code.let(f'lshr i64 {digit}, 8')}, {known}")
                at = code.let(f"getelementptr i64, ptr %counts, i64 {low}")
                more = code.sum(code.let(f"load i64, ptr {at}"), code.let(f"zext i1 {same} to i64"))
                code.add(f"store i64 {more}, ptr {at}")
            total = code.cell(int64)
            code.add(f"store i64 {code.let(f'load i64, ptr {least}')}, ptr {total}")
            with code.loop("0", str(DIGIT)) as b:
                before = code.let(f"load i64, ptr {total}")
                self.summed(code, total, "%counts", b)
                wanted = code.let(f"icmp slt i64 {before}, %first")
                with code.when(wanted):
                    code.add(f"store i64 {before}, ptr {least}")
                    up = code.let(f"shl i64 {known}, 8")
                    code.add(f"store i64 {code.sum(up, b)}, ptr {prefix}")
        limit = code.let(f"load i64, ptr {prefix}")
        made = code.cell(int64)
        code.add(f"store i64 0, ptr {made}")
        with code.loop("0", "%n") as i:
            found = self.load(code, "%keys", i)
            many = code.let(f"load i64, ptr {made}")
            self.store(code, found, "%keys", many)
            shift = str(self.kind.shift(last - levels[-1]))
            digit = self.digit(code, found, shift, DIGIT << 8 * levels[-1])
            fits = code.let(f"icmp ule i64 {digit}, {limit}")
            code.add(f"store i64 {code.sum(many, code.let(f'zext i1 {fits} to i64'))}, ptr {made}")
        head = "define internal i64 @keep(ptr %keys, i64 %n, i64 %first, ptr %counts) {\nentry:"
        return self.function(head, code, f"i64 {code.let(f'load i64, ptr {made}')}")

    def lines(self) -> str:
        code = self.begin()
        counts = code.let("inttoptr i64 %own to ptr")
        size = str(8 * DIGIT * self.kind.dtype.itemsize)
        keys = code.let(f"getelementptr i8, ptr {counts}, i64 {size}")
        bytes_ = code.let(f"and i64 {code.sum(code.times('%n', str(self.kind.item)), '63')}, -64")
        others = code.let(f"getelementptr i8, ptr {keys}, i64 {bytes_}")
        with code.loop("%lo", "%hi") as line:
            x, out = code.begins(line, (0, 1))
            with code.loop("0", "%n") as i:
                at = self.number(code, x, i, "%step_x", self.kind.dtype.itemsize)
                self.store(code, self.read(code, at, i), keys, i)
            many = "%n"
            if self.kind.selects:
                many = code.let(f"call i64 @keep(ptr {keys}, i64 %n, i64 %first, ptr {counts})")
            given = f"ptr {keys}, ptr {others}, i64 {many}, ptr {counts}"
            sorted_ = code.let(f"call ptr @order({given})")
            with code.loop("0", "%first") as i:
                self.write(code, self.load(code, sorted_, i), out, i)
        return self.function(BODY, code)

    # -- parts of a line
    def phase(self, name: str) -> str:
        """Write a phase over parts; where keys are is known as it runs."""
        code = self.parts()
        x, out = (code.let(f"call ptr @array(ptr %data, i64 {k})") for k in range(2))
        x = code.let(f"getelementptr i8, ptr {x}, i64 %at_x")
        out = code.let(f"getelementptr i8, ptr {out}, i64 %at_out")
        with code.loop("%lo", "%hi") as part:
            ends = (code.times(k, "%n") for k in (part, code.sum(part, "1")))
            begin, end = (code.let(f"udiv i64 {k}, %parts") for k in ends)
            counts = code.let(f"getelementptr [{DIGIT} x i64], ptr %table, i64 {part}")
            size = self.kind.dtype.itemsize
            if name in ("load", "count"):
                code.clear(counts, str(8 * DIGIT))
            if name in ("count", "move"):
                end = code.let(f"select i1 %goes, i64 {end}, i64 {begin}")
            if name == "write":
                end = code.least(end, "%first")
            if name == "load":
                one = self.read(code, self.number(code, x, "0", "%step_x", size), "0")
            with code.loop(begin, end) as i:
                match name:
                    case "load":
                        found = self.read(code, self.number(code, x, i, "%step_x", size), i)
                        self.store(code, found, "%first_keys", i)
                        other = code.let(f"xor {self.one} {found[0]}, {one[0]}")
                        self.mark(code, counts, other, self.one)
                    case "count":
                        digit = self.digit(code, self.load(code, "%from", i), "%shift")
                        self.counted(code, counts, digit)
                    case "move":
                        found = self.load(code, "%from", i)
                        place = self.counted(code, counts, self.digit(code, found, "%shift"))
                        self.store(code, found, "%to", place)
                    case "write":
                        self.write(code, self.load(code, "%from", i), out, i)
        return self.function(BODY, code)

    def finish(self, name: str) -> str:
        """Write what follows a phase."""
        code = self.parts()
        told = [code.let(f"getelementptr i64, ptr %told, i64 {k}") for k in range(3)]
        match name:
            case "load":
                out = code.let(
                    f"ptrtoint ptr {code.let('call ptr @array(ptr %data, i64 1)')} to i64"
                )
                inside = code.let("icmp eq i64 %others, 0")  # the other keys are in the result
                here = code.sum(out, "%at_out")
                others = code.let(f"select i1 {inside}, i64 {here}, i64 %others")
                for at, value in zip(told, ("%keys", others, "0"), strict=True):
                    code.add(f"store i64 {value}, ptr {at}")
                with code.loop("0", "%parts") as part:
                    at = code.let(f"getelementptr [{DIGIT} x i64], ptr %table, i64 {part}")
                    self.mark(code, told[2], code.let(f"load i64, ptr {at}"), "i64")
            case "count":
                total = code.cell(int64)
                code.add(f"store i64 0, ptr {total}")
                with code.loop("0", str(DIGIT)) as digit, code.loop("0", "%parts") as part:
                    skip = code.sum(code.times(part, str(DIGIT)), digit)
                    self.summed(code, total, "%table", skip)
            case "move":
                for at, new, old in zip(told, ("%to", "%from"), ("%from", "%to"), strict=False):
                    made = code.let(f"select i1 %goes, ptr {new}, ptr {old}")
                    code.add(f"store ptr {made}, ptr {at}")
        return self.function(END, code)

    def parts(self) -> Code:
        """Begins with what all phases know."""
        code = Code()
        for k, name in enumerate(_PARTS):
            code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
        code.add("%first_keys = inttoptr i64 %keys to ptr")
        code.add("%table = inttoptr i64 %counts to ptr")
        code.add("%told = inttoptr i64 %state to ptr")
        for k, (name, what) in enumerate((("from", "ptr"), ("to", "ptr"), ("differ", "i64"))):
            code.add(f"%{name}_at = getelementptr i64, ptr %told, i64 {k}")
            code.add(f"%{name} = load {what}, ptr %{name}_at")
        digit = code.let(f"and i64 {code.let('lshr i64 %differ, %shift')}, {DIGIT - 1}")
        code.add(f"%goes = icmp ne i64 {digit}, 0")
        return code

    def mark(self, code: Code, at: str, bits: str, kind: str) -> None:
        if kind != "i64":
            bits = code.let(f"zext {kind} {bits} to i64")
        before = code.let(f"load i64, ptr {at}")
        code.add(f"store i64 {code.let(f'or i64 {before}, {bits}')}, ptr {at}")


def phases(kind: KeyKind) -> Iterator[tuple[str, int]]:
    """Iterate over the phases of a line, each with its digit."""
    yield "load", 0
    for digit in range(kind.dtype.itemsize):
        yield "count", digit
        yield "move", digit
    yield "write", 0


@lru_cache(64)
def lines_text(kind: KeyKind) -> str:
    writer = _Radix(kind)
    functions = [writer.insert(), writer.order(), writer.lines(), NOTHING]
    if kind.selects:
        functions.append(writer.keep())
    return "\n".join([*sorted(writer.declared), TABLES, places(2), *functions, around(2)])


@lru_cache(64)
def part_text(kind: KeyKind, phase: str) -> str:
    writer = _Radix(kind)
    functions = [writer.phase(phase), writer.finish(phase)]
    return "\n".join([*sorted(writer.declared), TABLES, *functions, around(2)])
