"""Training that stops and goes on with another number of workers, to the same bits."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

import ostinato as ost


@ost.compile(donate=["w", "speed"])
def update(w: Any, speed: Any, x: Any, y: Any) -> Any:
    """Descent with momentum, for least squares."""
    g = ost.grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    speed = 0.9 * speed - 0.05 * g
    return w + speed, speed


def train(folder: str, workers: int, steps: int) -> Any:
    """The steps that are left behind the last checkpoint."""
    with ost.connect(workers, numerics="any-workers"):
        x = ost.random.normal((20_000, 16), seed=1, split=0)
        y = x @ ost.arange(16.0)
        state: dict[str, Any] = {"step": 0, "w": ost.zeros(16), "speed": ost.zeros(16)}
        if ost.saved_steps(folder):
            state = ost.load_state(folder)
        print(f"{workers} workers go on behind step {state['step']}")
        while state["step"] < steps:
            w, speed = update(state["w"], state["speed"], x, y)
            state = {"step": state["step"] + 1, "w": w, "speed": speed}
            if state["step"] % 20 == 0:
                ost.save_state(folder, state, step=state["step"], wait=False)
        ost.save_state(folder, state, step=state["step"])
        return ost.tree_map(np.asarray, state)


def main(steps: int = 200) -> tuple[Any, Any]:
    """The end of a run with stops, and of one without."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        for workers, end in ((2, steps // 2 + 5), (3, steps // 2 + 30), (1, steps)):
            stopped = train(folder, workers, end)
        print("checkpoints:", ost.saved_steps(folder))
        whole = train(other, 1, steps)
        print("the same bits:", stopped["w"].tobytes() == whole["w"].tobytes())
        return stopped, whole


if __name__ == "__main__":
    main()
