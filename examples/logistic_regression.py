"""Logistic regression by Newton's method; the Hessian is one all-reduce, whatever the number of rows."""

from __future__ import annotations

import sys
from typing import Any

import ostinato as ost


def loss(w: Any, x: Any, y: Any) -> Any:
    z = x @ w
    return ost.mean(ost.nn.softplus(z) - y * z) + 1e-4 * (w * w).sum()


@ost.compile
def newton(w: Any, x: Any, y: Any) -> Any:
    value, slope = ost.value_and_grad(loss)(w, x, y)
    p = ost.nn.sigmoid(x @ w)
    curvature = (x * (p * (1 - p))[:, None]).T @ x / x.shape[0] + 2e-4 * ost.eye(w.shape[0])
    return w - ost.linalg.solve(curvature, slope), value


def main(
    rows: int = 200_000, columns: int = 12, workers: int | None = None
) -> tuple[list[float], float]:
    """The loss step by step, and the share of rows on the right side."""
    with ost.connect(workers=workers):
        truth = ost.random.normal((columns,), seed=1, dtype=ost.float64)
        x = ost.random.normal((rows, columns), seed=2, dtype=ost.float64, split=0)
        y = ost.random.bernoulli(ost.nn.sigmoid(x @ truth), seed=3).astype(ost.float64)
        w, losses = ost.zeros(columns), []
        for _ in range(8):
            w, value = newton(w, x, y)
            losses.append(float(value))
        right = float((((x @ w) > 0) == (y > 0.5)).mean())
        print("loss", " ".join(f"{v:.5f}" for v in losses))
        print(f"{right:.1%} on the right side; {newton}")
        return losses, right


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
