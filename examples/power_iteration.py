"""The largest eigenvalue of a matrix; the loop runs on the workers until it has converged, without
a message per turn."""

from __future__ import annotations

import sys
from typing import Any

import ostinato as ost


@ost.compile
def largest(a: Any, tolerance: float) -> Any:
    """Eigenvalue, eigenvector and the number of turns that it took."""

    def turn(state: Any) -> Any:
        v, value, _, turns = state
        w = a @ v
        found = v @ w
        return w / ost.sqrt(w @ w), found, ost.abs(found - value), turns + 1

    n = a.shape[0]
    start = ost.ones(n) / n**0.5
    state = (start, ost.asarray(0.0), ost.asarray(1.0), ost.asarray(0))
    v, value, _, turns = ost.while_loop(lambda s: (s[2] > tolerance) & (s[3] < 10_000), turn, state)
    return value, v, turns


def main(n: int = 1000, workers: int | None = None) -> tuple[float, float]:
    """The eigenvalue, and how far A v is from it times v."""
    with ost.connect(workers=workers):
        g = ost.random.normal((n, n), seed=1, dtype=ost.float64, split=0)
        a = (g + g.T) / (2 * n) ** 0.5 + 0.5
        a = a.resplit(0)
        value, v, turns = largest(a, 1e-12)
        rest = float(ost.abs(a @ v - value * v).max())
        print(f"eigenvalue {float(value):.9f} after {int(turns)} turns; residual {rest:.1e}")
        print(largest.plan)
        return float(value), rest


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
