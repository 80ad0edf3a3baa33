"""Machine code for what draws.py draws: the same numbers of a sample for a stage, four at a time."""

from __future__ import annotations

from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once, symbol

MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157  # Philox4x64's
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10
UNIT = "0x3CA0000000000000"  # 2**-53, as LLVM writes it


@once
def define() -> str:
    """What texts declare to call it: of a place, a stage and two keys, the k-th four numbers in [0, 1)."""
    symbol("ostinato_draw", llvm.linked(_text()))
    return "declare void @ostinato_draw(i64, i64, i64, i64, i64, ptr) nonlazybind"


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _text() -> str:
    lines, c, k = [], ["%first", "%place", "%stage", "0"], ["%key0", "%key1"]
    for r in range(ROUNDS):
        for n, (m, word) in enumerate(zip(MULTIPLIERS, (c[0], c[2]), strict=True)):
            lines.append(
                f"  %w{r}_{n} = zext i64 {word} to i128\n"
                f"  %p{r}_{n} = mul i128 %w{r}_{n}, {m}\n"
                f"  %l{r}_{n} = trunc i128 %p{r}_{n} to i64\n"
                f"  %u{r}_{n} = lshr i128 %p{r}_{n}, 64\n"
                f"  %h{r}_{n} = trunc i128 %u{r}_{n} to i64"
            )
        for n, (high, other) in enumerate(((f"%h{r}_1", c[1]), (f"%h{r}_0", c[3]))):
            lines.append(
                f"  %x{r}_{n} = xor i64 {high}, {other}\n  %c{r}_{n} = xor i64 %x{r}_{n}, {k[n]}\n"
                f"  %k{r}_{n} = add i64 {k[n]}, {_signed(WEYL[n])}"
            )
        c, k = [f"%c{r}_0", f"%l{r}_1", f"%c{r}_1", f"%l{r}_0"], [f"%k{r}_0", f"%k{r}_1"]
    for n, word in enumerate(c):
        lines.append(
            f"  %s{n} = lshr i64 {word}, 11\n  %f{n} = uitofp i64 %s{n} to double\n"
            f"  %y{n} = fmul double %f{n}, {UNIT}\n"
            f"  %o{n} = getelementptr double, ptr %found, i64 {n}\n  store double %y{n}, ptr %o{n}"
        )
    text = "\n".join(lines)
    return f"""
define void @run(i64 %place, i64 %stage, i64 %key0, i64 %key1, i64 %k, ptr %found) nounwind {{
entry:
  %first = add i64 %k, 1
{text}
  ret void
}}
"""
