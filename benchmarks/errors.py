"""The largest errors of special functions of float32, in units in the last place: what speed in the
suite `everyday` costs, or does not.

    python -m benchmarks.errors

Each library is given the operands of that suite; SciPy in double precision says what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .everyday import SPECIAL
from .workload import Numbers


def _of_ostinato(name: str, xs: Sequence[Numbers]) -> Any:
    import ostinato as ost

    return ost.compile(getattr(ost.special, name))(*(ost.asarray(x) for x in xs))


def _of_jax(name: str, xs: Sequence[Numbers]) -> Any:
    import jax  # type: ignore[import-not-found, unused-ignore]
    from jax.scipy import special  # type: ignore[import-not-found, unused-ignore]

    return jax.jit(getattr(special, name))(*xs)


LIBRARIES: Mapping[str, Callable[[str, Sequence[Numbers]], Any]] = {
    "ostinato": _of_ostinato,
    "jax": _of_jax,
}


def errors(only: Sequence[str] = tuple(LIBRARIES)) -> Iterator[tuple[str, dict[str, float]]]:
    """Of each function the error of each library that is there and has it."""
    import scipy.special  # type: ignore[import-untyped, unused-ignore]

    for name, operands in SPECIAL.items():
        xs, found = operands(), dict[str, float]()
        right = getattr(scipy.special, name)(*(x.astype(np.float64) for x in xs))
        unit = np.spacing(np.abs(right).astype(np.float32)).astype(np.float64)
        for library in only:
            try:
                made = np.asarray(LIBRARIES[library](name, xs), np.float64)
            except (ImportError, AttributeError):
                continue
            found[library] = float((np.abs(made - right) / unit).max())
        yield name, found


def main() -> None:
    print(f"{'':12}" + "".join(f"{library:>12}" for library in LIBRARIES))
    for name, found in errors():
        cells = (f"{found[at]:12.3g}" if at in found else f"{'':12}" for at in LIBRARIES)
        print(f"{name:12}" + "".join(cells))


if __name__ == "__main__":
    main()
