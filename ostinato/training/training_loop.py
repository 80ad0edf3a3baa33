"""The loop around a step: `state, history = ost.fit(step, state, data, epochs=10)`.

Nobody waits for a step: metrics are read late, those of some steps at once, when steps behind them are
on their way. What a checkpoint has is the state, how far the data is, and the history, so who goes on
from there comes to the same bits."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic as clock
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ostinato import progress as progress_line
from ostinato.compiled import CompiledFunction
from ostinato.debug import nans
from ostinato.errors import ArgumentError, DataFileError, NaNError
from ostinato.io_pipeline.steps import Steps
from ostinato.ops.array.shape import copy
from ostinato.ops.core import activity
from ostinato.ops.core.array import Array
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import flatten, tree_map, unflatten
from ostinato.ops.core.user_line import misfit, short, user_line
from ostinato.reading import evaluate
from ostinato.states import load_state, save_state, saved_steps

from .fit_data import Batches, are_arrays, batches_of, count_samples
from .history import History, Row

S = TypeVar("S")
SIGNS = {"min": 1.0, "max": -1.0}  # what is made small, of what is to be so


class Meter:
    """Metrics of steps that were not read yet. Those are read that waited for a while already, so that
    none of them is still being computed."""

    def __init__(self, told: Callable[[int, int, Row], None], pause: float = 0.2) -> None:
        self.told = told
        self.pause = pause
        self.older: list[tuple[int, int, Any]] = []
        self.newer: list[tuple[int, int, Any]] = []
        self.last = clock()

    def add(self, step: int, weight: int, metrics: Any) -> bool:
        """Take a step's metrics; whether some were read."""
        self.newer.append((step, weight, metrics))
        if clock() - self.last < self.pause:
            return False
        waited, self.older, self.newer = self.older, self.newer, []
        self._read(waited)
        self.last = clock()
        return True

    def flush(self) -> None:
        """Read all."""
        waited, self.older, self.newer = [*self.older, *self.newer], [], []
        self._read(waited)

    def _read(self, waited: list[tuple[int, int, Any]]) -> None:
        evaluate([metrics for _, _, metrics in waited])
        for step, weight, metrics in waited:
            self.told(step, weight, _numbers(metrics))


def _numbers(metrics: Any) -> Row:
    """Metrics of a step, as numbers."""
    given = metrics if isinstance(metrics, dict) else {"loss": metrics}
    found = {}
    for name, x in given.items():
        value = np.asarray(x)
        if value.size != 1 or (value.dtype.kind not in "biuf" and value.dtype.itemsize > 2):
            got = f"{name!r} of type {type(x).__name__}, shape {value.shape}"
            needed = "a number for each metric"
            raise misfit(ArgumentError, "fit", got=got, needed=needed, do="give back its mean")
        found[str(name)] = float(value.reshape(()))
    return found


class Means:
    """Means of metrics, weighted by samples."""

    def __init__(self, sums: dict[str, Any] | None = None) -> None:
        self.sums: dict[str, list[float]] = sums or {}

    def add(self, weight: int, metrics: Row) -> None:
        for name, x in metrics.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = [total + weight * x, count + weight]

    def row(self) -> Row:
        return {name: total / count for name, (total, count) in self.sums.items()}


class Run:
    """A training that runs, as callbacks see it.

    state, epoch, step: how far it is. history: see `History`. metrics: the last that were read.
    `stop(why)` ends it after this step.

    >>> step = lambda w, batch: (w - 0.1 * batch.mean(), {"loss": w})
    >>> stops = lambda run: run.stop("far enough") if run.metrics["loss"] < 0.5 else None
    >>> ones = np.ones(4)
    >>> w, history = ost.fit(step, 1.0, ones, epochs=90, callbacks=[stops], progress=False)
    >>> len(history.epochs), history.stopped
    (7, 'far enough')
    """

    def __init__(self, state: Any) -> None:
        self.state = state
        self.epoch = 0
        self.step = 0
        self.history = History()
        self.metrics: Row = {}
        self._stopped = ""

    def stop(self, why: str = "callback") -> None:
        """End the training after this step."""
        self._stopped = self._stopped or why


class _Loop(Run):
    """A run, with all that it was asked for."""

    def __init__(self, asked: Any, again: _Loop | None = None) -> None:
        """again: a run that is to be looked at once more."""
        super().__init__(tree_map(_given, asked.state))
        self.asked = asked
        self.epochs: int = asked.epochs
        self.patience: int | None = asked.patience
        self.best: int = asked.best
        self.make: Any = again.make if again is not None else asked.step
        if again is None and asked.compile:
            self.make = _compiled(asked.step, donate=(0,))
        self.data: Batches = (
            again.data
            if again is not None
            else batches_of("fit", asked.data, asked.batch, asked.shuffle)
        )
        self.validate: Any = None
        self.monitor = asked.monitor or ("loss" if asked.validate is None else "val_loss")
        self.sign = SIGNS[asked.mode]
        self.folder: Path | None = None
        self.callbacks: list[Any] = [*asked.callbacks]
        self.line = short(user_line())
        self.batch = 0  # of this epoch, the next one
        self.feed: Any = None
        self.means = Means()
        self.meter = Meter(self._told)
        self.ranked: list[list[float]] = []  # of the best epochs: value and step
        self.bad = 0  # epochs since the best one
        self.shared: set[int] | None = None  # which metrics are arrays of the state
        self.screen: Any = None
        self.total: int | None = None  # batches of this epoch, if its data says
        self.length: int | None = None  # as far as it is known
        self.begun = clock()
        self.samples, self.steps = 0, 0

    def prepare(self) -> None:
        """Open what is written to and read from, and go on where a checkpoint is."""
        asked = self.asked
        self.validate = asked.validate
        if isinstance(asked.validate, tuple):
            function, data = asked.validate
            size = asked.batch if are_arrays(data) else None
            checked = batches_of("fit(validate=)", data, size, None)
            self.validate = (_compiled(function) if asked.compile else function, checked)
        if asked.tensorboard is not None:
            from .tensorboard import Events

            self.callbacks.append(Events(asked.tensorboard))
        if asked.checkpoint is not None:
            self.folder = _folder(asked.checkpoint)
        if asked.resume:
            self.restore()
        self.screen = progress_line.screen_here() if asked.progress else None

    # -- steps -----------------------------------------------------------------------------
    def run(self) -> None:
        """All epochs that are left, or as many as go before somebody stops it."""
        with _presses(self):
            while self.epoch < self.epochs and not self._stopped:
                self._one_epoch()
            if self._stopped and self.batch:
                self.save()
        self.history.stopped = self._stopped if self.epoch < self.epochs else ""

    def _one_epoch(self) -> None:
        begin = clock()
        before = self.samples
        feed, self.feed = self.feed, None
        batches, self.total = self.data.epoch(self.epoch, self.batch, feed)
        self.length = self.length if self.total is None else self.total
        try:
            for batch in batches:
                self._one_step(batch)
                if self._stopped:
                    break
        finally:
            getattr(batches, "close", lambda: None)()
        if not self.batch:
            raise self._empty("fit", self.epoch)
        self.meter.flush()
        if self._stopped and self.batch != self.total:
            return
        self.length = self.batch
        self.metrics = self.means.row()
        row = {"epoch": self.epoch, "step": self.step, **self.metrics, **self._validated()}
        self.history.epochs.append(row)
        self.epoch, self.batch, self.means = self.epoch + 1, 0, Means()
        is_best = self._ranks(row)
        self._say(row, clock() - begin, self.samples - before)
        for each in self.callbacks:
            call = getattr(each, "on_epoch", each if callable(each) else None)
            if call is not None:
                call(self)
        if self.folder is not None:
            self.save()
            if is_best:
                self._save_best()

    def _one_step(self, batch: Any) -> None:
        try:
            self.state, metrics = _pair(self.make(self.state, batch))
        except Exception as error:
            where = f"batch {self.batch} of epoch {self.epoch}, step {self.step + 1} of ost.fit"
            error.add_note(f"in {where} ({self.line})")
            raise
        self.batch += 1
        self.step += 1
        self.steps += 1
        size = count_samples(batch)
        self.samples += size
        if self.meter.add(self.step, size, self._kept(metrics)):
            self._show()
        for each in self.callbacks:
            if hasattr(each, "on_step"):
                each.on_step(self)
        if (
            self.asked.save_every
            and self.step % self.asked.save_every == 0
            and self.batch != self.total
        ):
            self.save()

    def _kept(self, metrics: Any) -> Any:
        """Metrics that may be read late: a step may write over arrays of its state, also over those that the
        one before gave back as they came, and as metrics, too."""
        leaves, structure = flatten(metrics)
        if self.shared is None:
            held = {id(x) for x in flatten(self.state)[0]}
            self.shared = {k for k, x in enumerate(leaves) if id(x) in held}
        if not self.shared:
            return metrics
        own = [_given(x) if k in self.shared else x for k, x in enumerate(leaves)]
        return unflatten(structure, own)

    def _told(self, step: int, weight: int, metrics: Row) -> None:
        """The metrics of a step have become known."""
        for name, x in metrics.items():
            if self.asked.nan and not math.isfinite(x):
                raise self._not_finite(step, name, x)
        self.metrics = metrics
        self.means.add(weight, metrics)
        self.history._add(metrics)

    def _validated(self) -> Row:
        if self.validate is None:
            return {}
        means = Means()
        if not isinstance(self.validate, tuple):
            means.add(1, _numbers(self.validate(self.state)))
        else:
            function, data = self.validate
            found = [(count_samples(b), function(self.state, b)) for b in data.epoch(0, 0, None)[0]]
            evaluate([metrics for _, metrics in found])
            for weight, metrics in found:
                means.add(weight, _numbers(metrics))
            if not found:
                raise self._empty("fit(validate=)", len(self.history.epochs))
        return {f"val_{name}": x for name, x in means.row().items()}

    def _empty(self, who: str, epoch: int) -> Exception:
        if epoch == 0:
            return misfit(ArgumentError, who, got="data without a batch", needed="one at least")
        got = f"data that ended before epoch {epoch}"
        do = "pass what can be iterated over again, or a function that gives an iterator"
        return misfit(ArgumentError, who, got=got, needed=f"data for {self.epochs} epochs", do=do)

    # -- what is not finite ----------------------------------------------------------------
    def _not_finite(self, step: int, name: str, x: float) -> Exception:
        made = self._operation(step)
        got = f"{name} = {x} in step {step}{made and ', which began here: '}{made}"
        do = "" if made else "run it within ost.debug.nans(), or with nan=False"
        return misfit(NaNError, "fit", got=got, needed="metrics that are finite", do=do)

    def _operation(self, step: int, most: int = 500) -> str:
        """The operation that made the first NaN, found by steps once more from the last checkpoint or the
        beginning with all results looked at, if these are few and the data comes again."""
        again, came = _Loop(self.asked, self), ""
        try:
            if self.folder is not None and saved_steps(self.folder):
                again.folder = self.folder
                again.restore()
            if not self.data.again or not 0 < step - again.step <= most:
                return ""
            with nans():
                while again.step < step:
                    batches, _ = again.data.epoch(again.epoch, again.batch, again.feed)
                    again.feed, again.batch = None, 0
                    for k, batch in enumerate(batches):
                        came = came or _nan_in(batch, f"batch {k} of epoch {again.epoch}")
                        again.state, _ = again.make(again.state, batch)
                        evaluate(again.state)
                        again.step += 1
                        if again.step == step:
                            break
                    again.epoch += 1
        except NaNError as error:
            return str(error)
        except Exception:  # it says no more than is known already
            return came
        return came

    # -- checkpoints -----------------------------------------------------------------------
    def save(self) -> None:
        """Write a checkpoint in the background."""
        if self.folder is None:
            return
        self.meter.flush()  # so that nothing is saved that is not finite
        names = ("epoch", "batch", "step", "ranked", "bad")
        told = {name: getattr(self, name) for name in names}
        told |= {"feed": self.data.state(), "sums": self.means.sums}
        text = json.dumps({**told, "history": self.history._as_data()})
        content = {"state": self.state, "fit": text}
        save_state(self.folder, content, step=self.step, keep=self.asked.keep, wait=False)

    def restore(self) -> None:
        """Go on where the newest checkpoint is, if there is one."""
        if self.folder is None or not saved_steps(self.folder):
            return
        found = load_state(self.folder, like={"state": self.state, "fit": ""})
        told = json.loads(found["fit"])
        self.state, self.feed, self.means = (
            found["state"],
            told.pop("feed"),
            Means(told.pop("sums")),
        )
        self.history = History._from_data(told.pop("history"))
        for name, value in told.items():
            setattr(self, name, value)
        if not self.batch:
            self.feed = None
        if self.patience is not None and self.bad >= self.patience:
            self.stop("patience")

    def _ranks(self, row: Row) -> bool:
        """Whether an epoch is among the best ones; ends the training after too many that are not."""
        if self.patience is None and not self.best:
            return False
        if self.monitor not in row:
            needed = f"one of {', '.join(n for n in row if n not in ('epoch', 'step'))}"
            got = f"monitor={self.monitor!r}"
            raise misfit(ArgumentError, "fit", got=got, needed=needed)
        value = self.sign * row[self.monitor]
        is_first = not self.ranked or value < self.ranked[0][0]
        self.bad = 0 if is_first else self.bad + 1
        if self.patience is not None and self.bad >= self.patience:
            self.stop("patience")
        self.ranked = sorted([*self.ranked, [value, self.step]])[: max(self.best, 1)]
        return any(step == self.step for _, step in self.ranked)

    def _save_best(self) -> None:
        if not self.best or self.folder is None:
            return
        folder = self.folder / "best"
        save_state(folder, self.state, step=self.step, keep=None)
        for step in set(saved_steps(folder)) - {int(step) for _, step in self.ranked}:
            Steps(folder).forget(step)

    # -- what is seen ----------------------------------------------------------------------
    def _show(self) -> None:
        if self.screen is None:
            return
        seconds = clock() - self.begun
        what = f"epoch {self.epoch + 1}/{self.epochs}: {_said(self.metrics)}"
        what += f", {self.samples / max(seconds, 1e-9):,.0f} samples/s"
        share = None
        if self.length:
            share = min((self.epoch + self.batch / self.length) / self.epochs, 1.0)
            seconds *= self.step / max(self.steps, 1)  # as if all steps had been of this run
        now = progress_line.Progress(what, share, seconds, False)
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # of a stream that closed
            self.screen.show(activity.task("fit", what), now)

    def _say(self, row: Row, seconds: float, samples: int) -> None:
        if not self.asked.progress:
            return
        if self.screen is not None:
            self.screen.hide()
        rate = f"{samples / max(seconds, 1e-9):,.0f} samples/s, {progress_line.clock(seconds)}"
        print(f"epoch {self.epoch}/{self.epochs}: {_said(row)} ({rate})", flush=True)


def _pair(made: Any) -> Any:
    """The state and the metrics that a step gives."""
    if isinstance(made, (tuple, list)) and len(made) == 2:
        return made
    kind = type(made).__name__
    kind += f" of {len(made)}" if isinstance(made, (tuple, list, dict)) else ""
    needed = "the next state and metrics, such as `return state, {'loss': loss}`"
    raise misfit(ArgumentError, "fit", got=f"{kind} from the step", needed=needed)


def _nan_in(batch: Any, name: str) -> str:
    """Where a batch has NaN as it comes."""
    found = [np.asarray(x) for x in flatten(batch)[0]]
    has = any(x.dtype.kind in "fc" and np.isnan(x).any() for x in found)
    return f"{name} has it as it comes" if has else ""


def _given(x: Any) -> Any:
    """An array that may be given away while whoever passed it keeps his."""
    return copy(x) if isinstance(x, Array) else x


def _said(row: Row) -> str:
    return ", ".join(f"{n} {x:.4g}" for n, x in row.items() if n not in ("epoch", "step"))


@contextlib.contextmanager
def _presses(run: Run) -> Iterator[None]:
    """The first Ctrl-C ends the run after its step; the second one ends it as ever."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def pressed(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run.stop("interrupt")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write("\nthe training ends after this step; Ctrl-C once more ends it now\n")

    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _compiled(function: Any, donate: Sequence[int] = ()) -> Any:
    is_plain = callable(function) and not isinstance(function, CompiledFunction)
    return CompiledFunction(function, donate=donate) if is_plain else function


def _check_count(name: str, value: Any, least: int) -> None:
    if not (type(value) is int and value >= least):
        needed = f"a whole number that is {least} or more"
        raise misfit(ArgumentError, "fit", got=f"{name}={value!r:.60}", needed=needed)


def _folder(path: str | os.PathLike[str]) -> Path:
    """A folder for checkpoints, if one can write to it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "ab"):  # which writers hold
            pass
    except OSError as error:
        got, needed = error.strerror or str(error), "a folder to write checkpoints to"
        raise misfit(
            DataFileError, f"fit(checkpoint={os.fspath(path)!r})", got=got, needed=needed
        ) from None
    return folder


def _check(asked: Any) -> None:
    if not callable(asked.step):
        got = f"a step of type {type(asked.step).__name__}"
        raise misfit(ArgumentError, "fit", got=got, needed="a function of the state and a batch")
    check = asked.validate
    if not (check is None or callable(check) or (isinstance(check, tuple) and len(check) == 2)):
        needed = "a function of the state, or a pair: a function of state and batch, and data"
        got = f"validate= of type {type(check).__name__}"
        raise misfit(ArgumentError, "fit", got=got, needed=needed)
    _check_count("epochs", asked.epochs, 1)
    _check_count("best", asked.best, 0)
    for name in ("patience", "save_every", "keep"):
        if getattr(asked, name) is not None:
            _check_count(name, getattr(asked, name), 1)
    if asked.mode not in SIGNS:
        got = f"mode={asked.mode!r:.60}"
        raise misfit(ArgumentError, "fit", got=got, needed="'min' or 'max'")
    if asked.checkpoint is None and (asked.resume or asked.best or asked.save_every):
        got = "resume=, best= or save_every= without a folder"
        raise misfit(ArgumentError, "fit", got=got, needed="one", do="pass checkpoint=")


def _run(loop: _Loop) -> tuple[Any, History]:
    loop.prepare()
    activity.others += loop.asked.progress  # two lines would write over each other
    try:
        loop.run()
    finally:
        activity.others -= loop.asked.progress
        if loop.screen is not None:
            loop.screen.hide()
        for each in loop.callbacks:
            if hasattr(each, "on_end"):
                each.on_end(loop)
    if loop.folder is not None:
        saved_steps(loop.folder)  # waits for what is being written
    return loop.state, loop.history


@door
def fit(
    step: Callable[[S, Any], tuple[S, Any]],
    state: S,
    data: Any,
    /,
    *,
    epochs: int,
    batch: int | None = None,
    shuffle: int | None = None,
    validate: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    keep: int | None = 3,
    resume: bool = False,
    monitor: str | None = None,
    mode: str = "min",
    patience: int | None = None,
    best: int = 0,
    nan: bool = True,
    callbacks: Sequence[Any] = (),
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = True,
    compile: bool = True,
) -> tuple[S, History]:
    """Train: call `step(state, batch)`, which gives the next state and metrics (a loss, or a dict of
    numbers), for each batch of each epoch. It gives the last state, and a `History`.

    data: a pipe; an array, or a tuple or dict of some, of which `batch` rows are taken at a time, in an
    order of the seed `shuffle`; something to iterate over in each epoch, or a function (of the epoch)
    that gives that. step: compiled if it is not yet, so that the state is changed in place; not with
    compile=False.
    validate: a function of the state that gives metrics, or a pair of a function of the state and a
    batch, and data; after each epoch.
    checkpoint: a folder for the state, the place in the data and the history, after each epoch and
    each `save_every` steps; `keep` are kept. resume=True goes on from the newest one, if there is one:
    to the same bits, in the middle of an epoch, too. best: so many of the best epochs' states are kept
    in the folder "best" in it, by `monitor` ("val_loss" if there is validation, else "loss"), which is
    to be small, or large with mode="max". patience: epochs without a better one, after which it ends.
    nan: the first metric that is not finite is a NaNError that names the step and, where steps can be
    done once more, the operation.
    callbacks: functions of the `Run` after each epoch, or objects with some of on_step, on_epoch, on_end.
    tensorboard: a folder for event files. progress: a line while it runs, and one for each epoch.

    Ctrl-C ends it after the step at hand, with a checkpoint; then history.stopped is "interrupt".

    >>> def step(w, batch):
    ...     x, y = batch
    ...     loss, slope = ost.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    ...     return w - 0.1 * slope, {"loss": loss}
    >>> x = np.random.default_rng(0).normal(size=(256, 3))
    >>> w, history = ost.fit(step, ost.zeros(3), (x, x @ [1, 2, 3]), epochs=20, progress=False)
    >>> w
    Array([1., 2., 3.], dtype=float64)
    """
    asked = SimpleNamespace(**locals())
    _check(asked)
    return _run(_Loop(asked))
