"""Where places that are found out as it runs may be, along an axis of some size, for so many elements from
there on.

    index    a number: -size to size - 1, negative ones are counted from the end
    slice    where a slice begins: all its elements are there, as in NumPy's x[i:i + n]
    clip     negative ones are counted from the end; what is still outside goes to the nearest place inside

`index` and `slice` are an error where NumPy would have no element or fewer, as extents do not depend on
values."""

from __future__ import annotations

BOUNDS = ("index", "slice", "clip")


def inside(size: int, extent: int, bounds: str) -> tuple[int, int]:
    """Below which place it is counted from the end, and the last one, counted from the first."""
    return (-extent if bounds == "slice" else 0), size - extent


def first_of(place: int, size: int, extent: int, bounds: str) -> int:
    """A place counted from the first, if it is inside."""
    back, last = inside(size, extent, bounds)
    found = place + size if place < back else place
    if bounds == "clip":
        return min(max(found, 0), last)
    if not 0 <= found <= last:
        raise IndexError(outside(place, size, extent, bounds))
    return found


def outside(place: int | str, size: int | str, extent: int = 1, bounds: str = "index") -> str:
    what = f"slice of {extent} elements from {place} on" if bounds == "slice" else f"index {place}"
    return f"{what} is out of bounds for an axis with {size} elements"
