"""Heat in a plate. Rows are split over the workers; each turn they exchange one halo of edge rows.

python examples/heat.py 4, or, with processes, ostinato run -n 4 examples/heat.py"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ostinato as ost


@ost.compile
def spread(u: Any, rate: float) -> Any:
    """A hundred turns of the five-point stencil; the border keeps its temperature."""

    def turn(u: Any) -> Any:
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].set(inner + rate * (around - 4 * inner))

    return ost.repeat(100, turn, u)


def main(n: int = 60, workers: int | None = None, rounds: int = 10) -> np.ndarray:
    """The plate after a thousand turns, hot along its upper edge."""
    with ost.connect(workers=workers):
        u = ost.zeros((n, n), split=0).at[0].set(100.0)
        for _ in range(rounds):
            u = spread(u, 0.2)
        print(spread.plan)
        plate = np.asarray(u)
        for row in plate[:: n // 12]:
            print("".join(" .:-=+*#%@"[min(9, int(t / 10.001))] for t in row))
        return plate


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
