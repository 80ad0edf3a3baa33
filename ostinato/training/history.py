"""How the metrics of a training went: a row for each epoch, and a curve over all steps."""

from __future__ import annotations

import csv
import io
import os
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.core.disk import write_page, writing
from ostinato.ops.core.user_line import misfit

Row = dict[str, float]


class History:
    """What `ost.fit` tells of a run.

    epochs: a dict for each: epoch, step (after it), the means of the step's metrics, and those of the
    validation, which are called ``val_loss`` and so on. curve: means of metrics over `every` steps
    each; when there are too many, two become one. stopped: why it ended before its last epoch, if it
    did: "patience", "interrupt", or what a callback said.

    >>> step = lambda w, batch: (w - 0.5 * (w - batch.mean()), {"loss": (w - batch.mean()) ** 2})
    >>> w, history = ost.fit(step, ost.asarray(2.0), np.zeros(4), epochs=2, batch=2, progress=False)
    >>> [row["loss"] for row in history.epochs]
    [2.5, 0.15625]
    """

    def __init__(self, limit: int = 2000) -> None:
        self.epochs: list[Row] = []
        self.curve: list[Row] = []
        self.every = 1
        self.stopped = ""
        self._limit = limit
        self._part: list[Row] = []

    def _add(self, metrics: Row) -> None:
        """Take one more step's metrics."""
        self._part.append(metrics)
        if len(self._part) == self.every:
            self.curve.append(_mean(self._part))
            self._part = []
        if len(self.curve) == self._limit:
            self.every *= 2
            pairs = zip(self.curve[::2], self.curve[1::2], strict=True)
            self.curve = [_mean(list(pair)) for pair in pairs]

    def _as_data(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("epochs", "curve", "every", "_limit", "_part")}

    @staticmethod
    def _from_data(data: dict[str, Any]) -> History:
        made = History()
        for name, value in data.items():
            setattr(made, name, value)
        return made

    def csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows of epochs as a table."""
        names = list(dict.fromkeys(name for row in self.epochs for name in row))
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, names, restval="")
        table.writeheader()
        table.writerows(self.epochs)
        write_page(path, text.getvalue())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw curves as a picture, .png, .svg or .pdf: of steps thin, of epochs and validation thick."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            needed, do = "matplotlib", "pip install matplotlib"
            got = "no matplotlib"
            raise misfit(ArgumentError, "History.plot", got=got, needed=needed, do=do) from None
        names = dict.fromkeys(n for row in [*self.curve, *self.epochs] for n in row)
        plain = [n for n in names if n not in ("epoch", "step", "seconds")]
        kinds = list(dict.fromkeys(n.removeprefix("val_") for n in plain))
        figure = Figure(figsize=(5 * max(len(kinds), 1), 4), layout="constrained")
        for k, kind in enumerate(kinds):
            axes = figure.add_subplot(1, len(kinds), k + 1, title=kind, xlabel="step")
            thin = [(n, row[kind]) for n, row in enumerate(self.curve, 1) if kind in row]
            axes.plot([n * self.every for n, _ in thin], [y for _, y in thin], lw=0.6, alpha=0.5)
            for name in (kind, f"val_{kind}"):
                thick = [(row["step"], row[name]) for row in self.epochs if name in row]
                if thick:
                    axes.plot(*zip(*thick, strict=True), "o-", ms=3, label=name)
            axes.grid(alpha=0.3)
            axes.legend()
        with writing(path):
            figure.savefig(path)

    def __repr__(self) -> str:
        last = ", ".join(f"{n} {x:.4g}" for n, x in (self.epochs or [{}])[-1].items())
        return f"<History: {len(self.epochs)} epochs{'; ' * bool(last)}{last}>"


def _mean(rows: list[Row]) -> Row:
    names = dict.fromkeys(name for row in rows for name in row)
    found = {n: [row[n] for row in rows if n in row] for n in names}
    return {n: sum(values) / len(values) for n, values in found.items()}
