"""Questions about layouts answered rank by rank, which is slow and plain: what the rules of
`ops/core/exchange.py` and `ops/core/traffic.py` are held against."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ostinato.ops.core.exchange import Transfer
from ostinato.ops.core.layout import Box, Layout, Overlap, Partial, intersect, volume

Shape = tuple[int, ...]


def boxes(layout: Layout, shape: Shape) -> list[Box]:
    return [layout.box(shape, rank) for rank in range(layout.workers)]


def exchange_lists(has: Layout, needs: Layout, shape: Shape) -> list[Transfer]:
    """All messages, by target and by the first rank that has each piece."""
    holders: dict[Box, list[int]] = {}
    for rank, box in enumerate(boxes(has, shape)):
        if volume(box):
            holders.setdefault(box, []).append(rank)
    found = []
    for target, wanted in enumerate(boxes(needs, shape)):
        own = has.box(shape, target)
        if volume(wanted) and intersect(own, wanted) == wanted:
            found.append(Transfer(target, target, wanted))
            continue
        for box, ranks in holders.items():
            common = intersect(box, wanted)
            if volume(common):
                source = next(r for r in ranks if _alike(has, r, target))
                found.append(Transfer(source, target, common))
    return found


def _alike(layout: Layout, a: int, b: int) -> bool:
    """Whether two workers lie alike along the axes of replicas."""
    pairs = zip(layout.splits, layout.coords(a), layout.coords(b), strict=True)
    return all(x == y for split, x, y in pairs if split is None)


def crossing(has: Layout, needs: Layout, shape: Shape) -> int:
    """The elements that cross between workers."""
    return sum(
        volume(needed) - volume(intersect(held, needed))
        for held, needed in zip(boxes(has, shape), boxes(needs, shape), strict=True)
    )


def has_copy(has: Layout, needs: Layout, shape: Shape) -> bool:
    return all(
        lo == hi or (mine[0] <= lo and hi <= mine[1])
        for held, needed in zip(boxes(has, shape), boxes(needs, shape), strict=True)
        for mine, (lo, hi) in zip(held, needed, strict=True)
    )


# -- small cases --------------------------------------------------------------------------------
MESHES = {
    1: [(1,), (1, 1)],
    2: [(2,), (2, 1), (1, 2)],
    3: [(3,)],
    4: [(4,), (2, 2), (1, 4)],
    5: [(5,)],
    6: [(6,), (2, 3), (3, 2), (3, 1, 2)],
    7: [(7,)],
    8: [(8,), (4, 2), (2, 4), (2, 2, 2)],
    12: [(12,), (3, 4), (2, 3, 2), (2, 6)],
    24: [(24,), (4, 6), (2, 3, 4)],
    30: [(30,), (5, 6), (3, 5, 2)],
}


def layouts(draw: random.Random, mesh: tuple[int, ...], shape: Shape, windows: bool) -> Layout:
    """Some layout of an array; often two axes split one dimension."""
    dims = [*range(len(shape))]
    splits = tuple(draw.choice([None, *dims, *dims[:1]]) for _ in mesh)
    if dims and draw.random() < 0.2:
        splits = (draw.choice(dims),) * len(mesh)
    cut = sorted({s for s in splits if s is not None})
    found = [(d, _window(draw, shape[d])) for d in cut if windows and draw.random() < 0.5]
    return Layout(mesh, splits, tuple(found), draw.random() < 0.2)


def _window(draw: random.Random, size: int) -> Overlap:
    """A stencil, a slice, padding, the adjoint of a slice in steps, or anything."""
    match draw.randrange(5):
        case 0:
            reach = draw.randint(1, 4)
            return Overlap(max(0, size - reach + 1), 0, 1, reach)
        case 1:
            start, step = draw.randint(0, size), draw.choice([1, 2, 3])
            return Overlap(len(range(start, size, step)), start, step, 1)
        case 2:
            before = draw.randint(0, 3)
            return Overlap(size + before + draw.randint(0, 3), -before, 1, draw.randint(1, 3))
        case 3:
            start, every = draw.randint(0, size), draw.choice([2, 3])
            count = max(0, every * size + start + draw.randint(-2, 2))
            return Overlap(count, -start, 1, 1, every)
    step = draw.choice([-2, -1, 1, 2, 5])
    every = draw.choice([1, 1, 2, 3])
    return Overlap(
        draw.randint(0, size + 2), draw.randint(-3, size), step, draw.randint(1, 6), every
    )


def cases(count: int, windows: bool = True) -> Iterator[tuple[Layout, Layout, Shape]]:
    """What workers have, what they need, and the shape."""
    draw = random.Random(17)
    for _ in range(count):
        workers = draw.choice([*MESHES])
        shape = tuple(
            draw.choice([0, 1, 2, 3, 5, 7, 8, 12, 24, 25, 31, 60])
            for _ in range(draw.randint(1, 3))
        )
        mesh = draw.choice(MESHES[workers])
        other = draw.choice([mesh, mesh, mesh, draw.choice(MESHES[workers])])
        has = layouts(draw, mesh, shape, False)
        if other == mesh and draw.random() < 0.3:  # the same cut, with a window perhaps
            dims = {s for s in has.splits if isinstance(s, int)}
            seen = [(d, _window(draw, shape[d])) for d in sorted(dims) if draw.random() < 0.7]
            needs = Layout(mesh, has.splits, tuple(seen) if windows else (), has.blocks)
        elif other == mesh and draw.random() < 0.2:  # by other axes than before
            before = [draw.random() < 0.5 for _ in mesh]
            has = Layout(mesh, tuple(0 if b else None for b in before))
            needs = Layout(mesh, tuple(None if b else 0 for b in before))
        else:
            needs = layouts(draw, other, shape, windows)
        yield has, needs, shape


def with_addends(draw: random.Random, layout: Layout) -> Layout:
    """The same with addends along some axes."""
    splits = tuple(Partial("sum") if draw.random() < 0.4 else s for s in layout.splits)
    return Layout(layout.mesh, splits, (), layout.blocks)
