"""The loop around a step: the same bits wherever it went on, nobody waits, and faults say where."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten
from ostinato.runtime.engine import LocalEngine

import ostinato as ost
from ostinato import progress
from ostinato.errors import ArgumentError, DataFileError, NaNError
from ostinato.training import training_loop as fitting
from tests.helpers import on

OPT = ost.optim.Adam(0.05)


class State(NamedTuple):
    w: Any
    opt: Any


def begin() -> State:
    w = {"a": ost.asarray(np.linspace(-1, 1, 12).reshape(4, 3)), "b": ost.zeros(3)}
    return State(w, OPT.init(w))


def loss(w: Any, x: Any, y: Any) -> Any:
    return ((x @ w["a"] + w["b"] - y) ** 2).mean()


def step(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
    value, slopes = ost.value_and_grad(loss)(state.w, *batch)
    return State(*OPT.update(state.w, slopes, state.opt)), {"loss": value, "size": batch[0].size}


def table(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(n).normal(size=(n, 4))
    return x, x @ np.arange(12.0).reshape(4, 3)


def pipe(batch: int = 8) -> Any:
    return ost.io.arrays(*table()).shuffle(seed=3).batch(batch)


def train(data: Any, epochs: int = 3, **options: Any) -> tuple[State, Any]:
    return ost.fit(step, options.pop("state", None) or begin(), data, epochs=epochs, progress=False, **options)  # fmt: skip


def same(a: Any, b: Any) -> None:
    for x, y in zip(flatten(a)[0], flatten(b)[0], strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def by_hand(data: Any, epochs: int) -> State:
    state, made = begin(), ost.compile(step)
    for epoch in range(epochs):
        for batch in data.epoch(epoch):
            state, _ = made(state, batch)
    return state


# -- data -----------------------------------------------------------------------------------
def test_a_loop_by_hand_comes_to_the_same_bits() -> None:
    first = begin()
    state, history = train(pipe(), state=first)
    same(state, by_hand(pipe(), 3))
    assert np.asarray(first.w["b"]).tolist() == [0, 0, 0], "whoever passed it keeps his"
    assert [row["step"] for row in history.epochs] == [5, 10, 15]
    assert history.epochs[2]["loss"] < history.epochs[0]["loss"]
    assert history.epochs[0]["size"] == 32
    assert len(history.curve) == 15
    assert history.stopped == ""


def test_data_in_many_forms() -> None:
    x, y = table()
    rows = [(x[k : k + 8], y[k : k + 8]) for k in range(0, 40, 8)]
    ends = [
        train(data, **options)[0]
        for data, options in (
            (rows, {}),
            ((x, y), {"batch": 8}),
            ((ost.asarray(x), y), {"batch": 8}),
            (ost.io.arrays(x, y), {"batch": 8}),
            (lambda: iter(rows), {}),
            (lambda epoch: [rows, rows, rows][epoch], {}),
            (ost.io.stream(lambda: iter(zip(x, y, strict=True))).batch(8), {}),
        )
    ]
    for end in ends[1:]:
        same(end, ends[0])
    mixed = train((x, y), batch=8, shuffle=3)[0]
    same(mixed, train(pipe())[0])


def test_means_are_weighted_by_samples() -> None:
    _, history = ost.fit(
        lambda s, b: (s, b.mean()), 0.0, np.asarray([1.0, 1.0, 7.0]), epochs=1, batch=2, progress=False
    )  # fmt: skip
    assert history.epochs == [{"epoch": 0, "step": 2, "loss": 3.0}]


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers(workers: int) -> None:
    one = train(pipe())[0]
    with on(workers):
        many = train(pipe())[0]
        for a, b in zip(flatten(one)[0], flatten(many)[0], strict=True):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-9)


def test_validation() -> None:
    seen = []
    x, y = table(20)

    def whole(state: State) -> dict[str, Any]:
        seen.append(state)
        return {"loss": loss(state.w, x, y)}

    _, history = train(pipe(), validate=whole)
    assert len(seen) == 3
    for data in ((x, y), [(x[:4], y[:4]), (x[4:], y[4:])], ost.io.arrays(x, y).batch(7)):
        pair = (lambda state, batch: {"loss": loss(state.w, *batch)}, data)
        _, other = train(table(), validate=pair, batch=8, shuffle=3)
        for a, b in zip(history.epochs, other.epochs, strict=True):
            assert a["val_loss"] == pytest.approx(b["val_loss"])


# -- going on -------------------------------------------------------------------------------
class Killed(Exception):
    pass


class Kills:
    """Breaks a run off, as a machine does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, run: Any) -> None:
        if run.step == self.at:
            raise Killed


@pytest.mark.parametrize(("form", "at"), [("pipe", 3), ("pipe", 5), ("pipe", 14), ("list", 8)])
def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path, at: int, form: str) -> None:
    x, y = table()
    rows = [(x[k : k + 8], y[k : k + 8]) for k in range(0, 40, 8)]
    make: Any = pipe if form == "pipe" else lambda: rows
    whole, told = train(make())
    with pytest.raises(Killed):
        train(make(), checkpoint=tmp_path, save_every=2, callbacks=[Kills(at)])
    end, history = train(make(), checkpoint=tmp_path, save_every=2, resume=True)
    same(end, whole)
    assert history.epochs == told.epochs
    assert history.curve == told.curve
    again, history = train(make(), checkpoint=tmp_path, resume=True)
    same(again, whole)
    assert len(history.epochs) == 3, "nothing was left to do"


def test_more_epochs_on_another_number_of_workers(tmp_path: Path) -> None:
    with on(2):
        train(pipe(), epochs=2, checkpoint=tmp_path)
    state, history = train(pipe(), epochs=3, checkpoint=tmp_path, resume=True)
    assert [row["epoch"] for row in history.epochs] == [0, 1, 2]
    for a, b in zip(flatten(state)[0], flatten(train(pipe())[0])[0], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9)


def test_ctrl_c_ends_it_with_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Presses:
        def on_step(self, run: Any) -> None:
            if run.step == 7:
                os.kill(os.getpid(), signal.SIGINT)

    state, history = train(pipe(), checkpoint=tmp_path, callbacks=[Presses()])
    assert history.stopped == "interrupt"
    assert ost.saved_steps(tmp_path)[-1] == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "Ctrl-C once more" in capsys.readouterr().err
    end, _ = train(pipe(), checkpoint=tmp_path, resume=True)
    same(end, train(pipe())[0])
    assert state.opt["step"] == 7


def test_a_callback_that_stops_it_leaves_a_checkpoint(tmp_path: Path) -> None:
    class Stops:
        def on_step(self, run: Any) -> None:
            if run.step == 8:
                run.stop("enough")

    _, history = train(pipe(), checkpoint=tmp_path, callbacks=[Stops()])
    assert history.stopped == "enough"
    assert ost.saved_steps(tmp_path)[-1] == 8
    same(train(pipe(), checkpoint=tmp_path, resume=True)[0], train(pipe())[0])


def test_ctrl_c_twice_ends_it_now() -> None:
    def press(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(pipe(), callbacks=[press])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# -- ends -----------------------------------------------------------------------------------
def test_patience_and_the_best(tmp_path: Path) -> None:
    values = iter([5.0, 3.0, 4.0, 2.0, 6.0, 7.0, 8.0, 1.0])
    options: dict[str, Any] = {
        "validate": lambda state: {"loss": next(values)},
        "checkpoint": tmp_path,
    }
    state, history = train(pipe(20), 8, patience=3, best=2, **options)
    assert history.stopped == "patience"
    assert len(history.epochs) == 7
    assert sorted(ost.saved_steps(tmp_path / "best")) == [4, 8]
    _, again = train(pipe(20), 8, patience=3, best=2, resume=True, **options)
    assert (again.stopped, again.epochs) == ("patience", history.epochs)
    kept = ost.load_state(tmp_path / "best", step=8, like=state)
    same(kept, train(pipe(20), 4)[0])
    _, history = train(pipe(20), 3, monitor="size", mode="max", patience=1)
    assert len(history.epochs) == 2


def broken(state: Any, batch: Any) -> Any:
    """A logarithm of what becomes negative at the fourth step."""
    w = state - 1.0
    return w, {"loss": batch.mean(), "entropy": ost.log(w).sum()}


def test_nan_stops_it_and_is_found() -> None:
    ones = [ost.ones(2)] * 3
    with pytest.raises(
        NaNError, match=r"entropy = nan in step 4, which began here: log .*test_fit.py"
    ):
        ost.fit(broken, ost.asarray(3.5), ones, epochs=2, progress=False)
    once = iter([ost.ones(2)] * 6)
    with pytest.raises(NaNError, match="run it within"):
        ost.fit(broken, ost.asarray(3.5), once, epochs=1, progress=False)
    _, history = ost.fit(broken, ost.asarray(3.5), ones, epochs=2, progress=False, nan=False)
    assert np.isnan(history.epochs[1]["entropy"])


def test_nan_is_found_behind_a_checkpoint_and_none_is_saved(tmp_path: Path) -> None:
    data = ost.io.arrays(np.ones(6)).batch(1)
    with pytest.raises(NaNError, match="in step 4, which began here: log"):
        ost.fit(
            broken,
            ost.asarray(3.5),
            data,
            epochs=2,
            progress=False,
            checkpoint=tmp_path,
            save_every=2,
        )
    assert ost.saved_steps(tmp_path) == [2]


# -- what nobody waits for ------------------------------------------------------------------
def test_metrics_are_read_late_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    begun: list[int] = []
    read: list[tuple[float, int]] = []
    get = LocalEngine.get
    monkeypatch.setattr(fitting, "clock", lambda: now[0])
    monkeypatch.setattr(
        LocalEngine, "get", lambda self, x: (read.append((now[0], len(begun))), get(self, x))[1]
    )

    class Clock:
        def on_step(self, run: Any) -> None:
            now[0] += 0.01
            begun.append(run.step)

    batch = table(8)
    first = begin()
    train([batch] * 200, 1, state=first, callbacks=[Clock()])
    assert len({t for t, _ in read}) <= 11, "each 0.2 s, and at the end"
    early = [(t, n) for t, n in read if 0 < n < 200]  # before, the state is copied
    assert len(early) >= 160
    for t in {t for t, _ in early}:
        done = [n for at, n in early if at == t]
        known = sum(at <= t for at, _ in early)
        assert known <= done[0] - 19, "what is read is of steps before those that began last"


# -- faults ---------------------------------------------------------------------------------
def ends_early() -> Iterator[Any]:
    yield table(8)


@pytest.mark.parametrize(
    ("data", "options", "kind", "said"),
    [
        ([], {}, ArgumentError, "data without a batch"),
        (lambda: iter(()), {}, ArgumentError, "data without a batch"),
        (iter([table(8)]), {}, ArgumentError, "ended before epoch 1; needed data for 3 epochs; pass"),
        (7, {}, ArgumentError, "data of type int"),
        ({"x": [1.0]}, {}, ArgumentError, "data of type dict; needed a pipe, arrays"),
        ("rows", {}, ArgumentError, "data of type str; needed a pipe, arrays"),
        ([table(8)], {"validate": [table(8)]}, ArgumentError, "validate= of type list; needed a fun"),
        ([table(8)], {"validate": (loss, [])}, ArgumentError, r"\(validate=\).*data without a batch"),
        (
            [table(8)],
            {"validate": (lambda s, b: loss(s.w, *b), iter([table(8)]))},
            ArgumentError,
            r"\(validate=\).*data that ended before epoch 1; .*; pass what can be",
        ),
        ([table(8)], {"batch": 4}, ArgumentError, "batch= or shuffle= and list"),
        ([table(8)], {"epochs": 0}, ArgumentError, "epochs=0"),
        ([table(8)], {"mode": "big"}, ArgumentError, "mode='big'"),
        ([table(8)], {"resume": True}, ArgumentError, "pass checkpoint="),
        ([table(8)], {"patience": 1, "monitor": "acc"}, ArgumentError, "monitor='acc'; needed one of loss"),
    ],
)  # fmt: skip
def test_refusals(data: Any, options: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        train(data, **options)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda w, b: {"loss": w}, "got dict of 1 from the step"),
        (lambda w, b: {"w": w, "loss": w}, "got dict of 2 from the step"),
        (lambda w, b: ost.zeros(2), "got Array from the step; needed the next state and metrics, such"),
        (lambda w, b: None, "got NoneType from the step"),
        (lambda w, b: (w, w, w), "got tuple of 3 from the step"),
        (3, "a step of type int; needed a function of the state and a batch"),
    ],
)  # fmt: skip
def test_a_step_gives_a_pair(made: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as caught:
        ost.fit(made, ost.asarray(0.0), [np.ones(3)], epochs=2, progress=False)
    assert "test_fit.py" in str(caught.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_metrics_that_are_arrays_of_the_state(compiled: bool) -> None:
    """The next step may write over its state, also where that is what came and goes on as it is."""

    def made(state: Any, batch: Any) -> Any:
        new = {**state, "w": state["w"] + batch.sum(), "before": state["w"]}
        return new, {name: new[name] for name in ("rate", "w", "before")}

    step = ost.compile(made, donate=("state",)) if compiled else made
    state = {"w": ost.zeros(()), "rate": ost.asarray(0.1), "before": ost.zeros(())}
    _, history = ost.fit(step, state, [np.ones(1)] * 3, epochs=1, progress=False)
    wanted = [{"rate": 0.1, "w": k + 1.0, "before": float(k)} for k in range(3)]
    assert history.curve == wanted
    assert float(state["rate"]) == 0.1


def test_batches_of_other_sizes_and_ends() -> None:
    """The last batch is smaller; an epoch has fewer batches than the one before."""
    x, y = table(20)
    rows = [(x[k : k + 8], y[k : k + 8]) for k in range(0, 20, 8)]
    state, history = train(lambda epoch: iter(rows[epoch:]), 2)
    same(state, train([*rows, *rows[1:]], 1)[0])
    assert [row["step"] for row in history.epochs] == [3, 5]


def test_a_batch_with_nan_is_named() -> None:
    bad = np.asarray([1.0, np.nan])
    data = [np.ones(2), np.ones(2), bad]

    def step(w: Any, batch: Any) -> Any:
        return w + batch.mean(), {"loss": w + batch.mean()}

    with pytest.raises(
        NaNError, match=r"loss = nan in step 3, .*: batch 2 of epoch 0 has it as it"
    ):
        ost.fit(step, ost.asarray(0.0), data, epochs=1, progress=False)

    def masked(w: Any, batch: Any) -> Any:
        w = w - ost.nanmean(batch)
        return w, {"loss": ost.log(w)}

    with pytest.raises(NaNError, match=r"loss = nan in step 3, which began here: log .*test_fit"):
        ost.fit(masked, ost.asarray(2.5), [bad] * 3, epochs=1, progress=False)


def test_a_step_that_raises_says_where() -> None:
    def fails(state: Any, batch: Any) -> Any:
        if float(batch.sum()) > 2:
            raise ZeroDivisionError("of mine")
        return state, {"loss": batch.sum()}

    data = [np.ones(2), np.ones(2), np.ones(3)]
    with pytest.raises(ZeroDivisionError, match="of mine") as caught:
        ost.fit(fails, 0.0, data, epochs=1, progress=False, compile=False)
    assert "in batch 2 of epoch 0, step 3 of ost.fit" in caught.value.__notes__[0]
    with pytest.raises(ArgumentError, match=r"'loss' of type .*, shape \(2,\); needed a number"):
        ost.fit(lambda s, b: (s, {"loss": b}), 0.0, data, epochs=1, progress=False)


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataFileError, match="needed a folder to write checkpoints to"):
        train(pipe(), checkpoint=file / "run")

    def breaks(run: Any) -> None:
        if run.epoch == 1:
            os.rename(tmp_path / "run", tmp_path / "elsewhere")
            (tmp_path / "run").write_text("")

    with pytest.raises(DataFileError, match="the checkpoint of step 5 was not written"):
        train(pipe(), checkpoint=tmp_path / "run", callbacks=[breaks])


def test_another_pipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(pipe(), checkpoint=tmp_path, save_every=2, callbacks=[Kills(3)])
    with pytest.raises(ArgumentError, match="the state of another pipe"):
        train(pipe(10), checkpoint=tmp_path, resume=True)


# -- what is seen ---------------------------------------------------------------------------
def test_lines_and_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []

    class Screen:
        def show(self, task: Any, now: Any) -> None:
            shown.append(now)

        def hide(self) -> None:
            shown.append(None)

    now = [0.0]
    monkeypatch.setattr(fitting, "clock", lambda: now.__setitem__(0, now[0] + 0.25) or now[0])
    monkeypatch.setattr(progress, "screen_here", Screen)
    ost.fit(step, begin(), pipe(), epochs=2)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["epoch 1/2", "epoch 2/2"]
    assert "loss" in said[0]
    assert "samples/s" in said[0]
    lines = [line for line in shown if line is not None]
    assert lines[-1].what.startswith("epoch 2/2: loss")
    assert lines[-1].share == 1.0
    assert shown[-1] is None


def test_curves(tmp_path: Path) -> None:
    history = ost.training.History(limit=8)
    for k in range(40):
        history._add({"loss": float(k)})
    assert (history.every, len(history.curve)) == (8, 5)
    assert [p["loss"] for p in history.curve] == [3.5, 11.5, 19.5, 27.5, 35.5]
    _, history = train(pipe(), validate=lambda state: {"loss": 1.0})
    history.csv(tmp_path / "run.csv")
    rows = (tmp_path / "run.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,loss,size,val_loss"
    assert len(rows) == 4
    assert "3 epochs" in repr(history)
    pytest.importorskip("matplotlib")
    history.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000


def test_event_files(tmp_path: Path) -> None:
    if "tensorboard" not in sys.modules and not _has("tensorboard"):
        with pytest.raises(ArgumentError, match="pip install tensorboard"):
            train(pipe(), tensorboard=tmp_path)
        return
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, history = train(pipe(), tensorboard=tmp_path)
    events = EventAccumulator(str(tmp_path)).Reload()
    found = events.Scalars("loss")
    assert [e.step for e in found] == [5, 10, 15]
    assert [e.value for e in found] == pytest.approx([row["loss"] for row in history.epochs])


def _has(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_callbacks_see_the_run() -> None:
    told: list[Any] = []

    class Tells:
        def on_step(self, run: Any) -> None:
            told.append(run.step)

        def on_end(self, run: Any) -> None:
            told.append("end")

    def stops(run: Any) -> None:
        told.append((run.epoch, run.history.epochs[-1]["step"], round(run.metrics["size"])))
        if run.epoch == 2:
            run.stop()

    _, history = train(pipe(20), 5, callbacks=[Tells(), stops])
    assert told == [1, 2, (1, 2, 80), 3, 4, (2, 4, 80), "end"]
    assert history.stopped == "callback"
