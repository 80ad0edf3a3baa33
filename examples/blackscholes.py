"""Prices of options and what they depend on, by Black and Scholes: one kernel, and its gradient another.

Try: python examples/blackscholes.py 4   (4 workers)"""

from __future__ import annotations

import math
import sys
from typing import Any

import ostinato as ost

RATE, VOLATILITY = 0.02, 0.3


def normal(x: Any) -> Any:
    """The probability that a normal number is below x."""
    return 0.5 + 0.5 * ost.erf(x * math.sqrt(0.5))


def call(spot: Any, strike: Any, years: Any) -> Any:
    """The price of the right to buy at the strike."""
    root = VOLATILITY * ost.sqrt(years)
    d1 = (ost.log(spot / strike) + (RATE + 0.5 * VOLATILITY**2) * years) / root
    return spot * normal(d1) - strike * ost.exp(-RATE * years) * normal(d1 - root)


@ost.compile
def prices(spot: Any, strike: Any, years: Any) -> Any:
    """Of calls and puts; the right to sell follows from that to buy."""
    buy = call(spot, strike, years)
    return buy, buy - spot + strike * ost.exp(-RATE * years)


@ost.compile
def deltas(spot: Any, strike: Any, years: Any) -> Any:
    """How much each call's price grows with the spot."""
    return ost.grad(lambda s: call(s, strike, years).sum())(spot)


def main(options: int = 1_000_000, workers: int | None = None) -> tuple[float, float, float]:
    """The mean prices of calls and puts, and the mean delta."""
    with ost.connect(workers=workers):
        spot, strike = (
            ost.random.uniform((options,), low=10, high=50, seed=k, split=0) for k in (1, 2)
        )
        years = ost.random.uniform((options,), low=0.25, high=2.0, seed=3, split=0)
        buy, sell = prices(spot, strike, years)
        found = float(buy.mean()), float(sell.mean()), float(deltas(spot, strike, years).mean())
        print(prices.plan)
        print("calls {:.4f}, puts {:.4f}, delta {:.4f}".format(*found))
        return found


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
