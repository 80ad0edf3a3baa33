"""`ostinato cache`: the plans that are kept on disk."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import settings

_ABOUT = """The plans that are kept on disk, for every later process that asks for the same.

    ostinato cache list              a line for each: id, size, when it was used last, what it takes and gives
    ostinato cache show 8fad58fb     what was decided, as plan.explain() says it; the first digits do
    ostinato cache prune             what other versions of ostinato made, and what exceeds OSTINATO_CACHE_MB
    ostinato cache prune --keep-mb 50
    ostinato cache prune --all"""


def add(commands: Any) -> None:
    plain = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(
        "cache", help="plans on disk", description=_ABOUT, formatter_class=plain
    )
    what = made.add_subparsers(dest="what", required=True, metavar="list|show|prune")
    what.add_parser("list", help="all plans").set_defaults(do=lambda asked: show_all())
    show = what.add_parser("show", help="one plan, explained")
    show.add_argument("id", help="the first digits of its id")
    show.set_defaults(do=lambda asked: show_one(asked.id))
    prune = what.add_parser("prune", help="make room")
    prune.add_argument("--keep-mb", type=_megabytes, help="the plans that were used last")
    prune.add_argument("--all", action="store_true", help="keep none")
    prune.set_defaults(do=lambda asked: make_room(asked.keep_mb, asked.all))


def _megabytes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (size := float(text)) < math.inf:
            return size
    raise argparse.ArgumentTypeError(f"got {text}; needed a number of megabytes, such as 50")


def _refused(why: str) -> int:
    print(f"ostinato cache: {why}", file=sys.stderr)
    return 2


def _plans() -> Any:
    """Plans that are kept of this version, and how to read them."""
    from ostinato.planner.cache import PlanCache

    return PlanCache(settings.cache)


def _files() -> list[Any]:
    """Plans of this version, those used last first."""
    plans = _plans()
    return sorted(plans.disk.files(plans.folder), key=lambda f: -f.used)


def show_all() -> int:
    if settings.cache is None:
        return _refused("OSTINATO_CACHE is off, so plans are kept nowhere")
    rows = [("id", "size", "used", "takes", "gives")]
    total = 0
    plans = _plans()
    for file in _files():
        total += file.size
        plan = plans.plan_of(file.path.stem)
        if plan is None:
            takes, gives = "damaged: a miss, which replaces it", ""
        else:
            takes = _listed(
                f"{name}: {_said(plan, spec)}" if name else _said(plan, spec)
                for name, spec in zip(_names(plan), plan.traced.inputs, strict=True)
            )
            gives = _listed(_said(plan, spec) for spec in plan.out_specs)
        used = _ago(time.time() - file.used)
        rows.append((file.path.stem[:12], f"{file.size / 1024:.1f} KB", used, takes, gives))
    if len(rows) > 1:
        wide = [max(len(row[k]) for row in rows) for k in range(4)]
        for row in rows:
            cells = [row[k].ljust(wide[k]) for k in range(4)]
            print("  ".join([*cells, row[4]]).rstrip())
    print(f"{len(rows) - 1} plans, {total / 2**20:.1f} MB, in {plans.disk.where(plans.folder)}")
    if old := len({f.path.parent for f in _others()}):
        print(f"{old} folders of other versions: ostinato cache prune")
    return 0


def _names(plan: Any) -> list[str]:
    missing = len(plan.traced.inputs) - len(plan.names)
    return [*plan.names, *[""] * missing]


def _said(plan: Any, spec: Any) -> str:
    """Without its layout, where there is only one."""
    return str(spec).partition(" @ ")[0] if plan.target.workers == 1 else str(spec)


def _listed(words: Iterator[str], most: int = 3) -> str:
    found = list(words)
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return ", ".join([*found[:most], *more])


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def show_one(start: str) -> int:
    found = [f.path.stem for f in _files() if f.path.stem.startswith(start.lower())]
    if len(found) != 1:
        how = "no plan" if not found else f"{len(found)} plans"
        return _refused(f"{how} with an id that begins with {start!r}; see `ostinato cache list`")
    plan = _plans().plan_of(found[0])
    if plan is None:
        return _refused(f"plan {found[0][:12]} is damaged: a miss, which replaces it")
    print(plan.explain())
    return 0


def _others() -> list[Any]:
    """Plans of other versions of this code."""
    plans = _plans()
    mine = plans.disk.where(plans.folder)
    return [f for f in plans.disk.files("plans") if f.path.parent != mine]


def make_room(keep_mb: float | None, everything: bool) -> int:
    from ostinato.planner.cache import PlanCache

    if settings.cache is None:
        return _refused("OSTINATO_CACHE is off, so plans are kept nowhere")
    if everything and keep_mb is not None:
        return _refused("got --all and --keep-mb; needed one of them")
    before = _size()
    _plans().disk.forget(_others())
    limit = 0 if everything else settings.cache_bytes
    limit = limit if keep_mb is None else int(keep_mb * 2**20)
    PlanCache(settings.cache, limit).sweep()
    after = _size()
    gone, freed = before[0] - after[0], (before[1] - after[1]) / 2**20
    print(f"{gone} plans removed, {freed:.1f} MB; {after[0]} plans stay, {after[1] / 2**20:.1f} MB")
    return 0


def _size() -> tuple[int, int]:
    """How many plans there are, and their bytes, of all versions."""
    files = list(_plans().disk.files("plans"))
    return len(files), sum(f.size for f in files)
