"""Rows as a table: per workload each system's time, its spread, and how it compares with ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .workload import OURS

Row = dict[str, Any]
HEAD = ("system", "median", "min", "max", "n", "ratio", "roof", "")


class Printer:
    """Prints a workload as soon as its rows are there."""

    def __init__(self, about: Mapping[str, str], floors: Mapping[str, float] = {}) -> None:
        self.about = about
        self.floors = floors  # seconds below which the machine cannot come
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        if not row["workload"]:
            print(f"{row['system']}: not measured, {row['note']}", flush=True)
            return
        if self.rows and self.rows[0]["workload"] != row["workload"]:
            self.end()
        self.rows.append(row)

    def end(self) -> None:
        if self.rows:
            name = self.rows[0]["workload"]
            print(
                f"\n{name}: {self.about.get(name, '')}\n{table(self.rows, self.floors.get(name, 0))}",
                flush=True,
            )
        self.rows = []


def table(rows: Sequence[Row], floor: float = 0) -> str:
    """One workload. The ratio is peer / ours, so above 1 we are faster; the roof is the share of what
    the machine can do.
    """
    unit, scale = unit_for([r["median_s"] for r in rows if r["median_s"]])
    lines = [(*HEAD[:1], *(f"{h} {unit}" for h in HEAD[1:4]), *HEAD[4:])]
    for r in rows:
        name = r["system"] + (f" {r['variant']}" if r["variant"] else "")
        if r["median_s"] is None:
            lines.append((name, r.get("problem", "failed"), "", "", "", r.get("note", ""), "", ""))
            continue
        times = [f"{r[k] * scale:.3g}" for k in ("median_s", "min_s", "max_s")]
        times = [plain(t) for t in times]
        ratio = compared(r, rows)
        share = f"{floor / r['median_s']:.0%}" if floor else ""
        shown = "" if ratio is None else f"{ratio:.2f}"
        lines.append((name, *times, str(r["n"]), shown, share, r.get("note", "")))
    wide = [max(len(line[k]) for line in lines) for k in range(5)]
    return "\n".join(
        "  "
        + line[0].ljust(wide[0])
        + "".join("  " + line[k].rjust(wide[k]) for k in range(1, 5))
        + f"  {line[5]:>7}  {line[6]:>5}  {line[7]}".rstrip()
        for line in lines
    )


def plain(number: str) -> str:
    """1.23e+03 as 1230."""
    return f"{float(number):.0f}" if "e+" in number else number


def unit_for(seconds: Sequence[float]) -> tuple[str, float]:
    """The unit in which the smallest time is a number above 1."""
    least = min(seconds, default=1.0)
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if least * scale >= 1:
            return unit, scale
    return "ns", 1e9


def compared(row: Row, rows: Sequence[Row]) -> float | None:
    """The row's time by ours: that of the same variant if there is one, else of the plain one."""
    if row["system"] == OURS:
        return None
    ours = {r["variant"]: r["median_s"] for r in rows if r["system"] == OURS and r["median_s"]}
    mine = ours.get(row["variant"], ours.get(""))
    return row["median_s"] / mine if mine else None
