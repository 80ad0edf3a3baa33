"""The examples and the README run, and find what they look for."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import signal
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import settings
from tests.clusters import needs_dask
from tests.thorough import some

ROOT = Path(__file__).resolve().parents[1]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"example_{name}", ROOT / "examples" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("workers", some([1, 3], 2, 1))
def test_kmeans(workers: int) -> None:
    losses = example("kmeans").main(5_000, 8, workers)
    assert losses[-1] < 0.5 * losses[0]
    assert losses[-1] == pytest.approx(losses[-2], rel=1e-3)


def test_train_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same images come whoever trains, so the same network does; one that Ctrl-C stopped in the middle of an
    epoch comes to the same bits."""
    pytest.importorskip("matplotlib")
    module, fit = example("train_images"), ost.fit
    small: dict[str, Any] = {"count": 16, "epochs": 2, "batch": 12, "size": 32, "width": 4}
    one, two, stopped = (tmp_path / name for name in ("one", "two", "stopped"))
    whole = module.main(None, 1, one, **small).epochs
    assert all(0 <= row["val_right"] <= 1 for row in whole)
    shared = module.main(one, 2, two, **small).epochs
    assert shared[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-2), "but for rounding"

    class Presses:
        def on_step(self, run: Any) -> None:
            if run.step == 6:
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ost, "fit", lambda *a, **k: fit(*a, callbacks=[Presses()], **k))
        assert module.main(one, 1, stopped, **small).stopped == "interrupt"
    assert "stopped behind 6 steps; the same command goes on" in capsys.readouterr().out
    assert not (stopped / "curves.png").exists()
    assert module.main(one, 1, stopped, **small).epochs == whole
    said = capsys.readouterr().out
    assert f"of bows, rings, stripes: {stopped / 'sheet.png'}" in said
    assert f"right; curves: {stopped / 'curves.png'}" in said
    assert all((stopped / name).stat().st_size > 10_000 for name in ("sheet.png", "curves.png"))
    assert [row["epoch"] for row in module.main(one, 1, stopped, **small).epochs] == [0, 1]
    with pytest.raises(SystemExit, match=r"no folder .*/nothing/train"):
        module.main(tmp_path / "nothing", 1, tmp_path / "other")


@pytest.mark.parametrize("workers", some([1, 2], 2, 1))
def test_fit_digits(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    right, same = example("fit_digits").main(workers, str(tmp_path / "curves.png"))
    assert right > 0.95
    assert same
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_speech(capsys: pytest.CaptureFixture[str]) -> None:
    losses, right = example("speech").main(24, 8, 60)
    assert losses[-1] < 0.5 * losses[0]
    assert right > 0.6
    assert "heard" in capsys.readouterr().out


def test_onnx_resnet() -> None:
    pytest.importorskip("onnx")
    error, losses = example("onnx_resnet").main(1)
    assert error < 1e-5
    assert losses[-1] < 0.1 * losses[0]


def test_volumes() -> None:
    """Slabs of one worker and of two are the same volumes."""
    ends = [example("volumes").main(4, 32, 4, workers) for workers in (1, 2)]
    assert ends[0][-1] > 0.85
    assert ends[0] == pytest.approx(ends[1], abs=1e-4)


def test_plan_2048_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "step.json"
    found = example("plan_2048_gpus").main(1, (16, 8), (64, 64, 256), str(to))
    assert {link.name for link in found.links} == {"NVLink", "InfiniBand"}
    assert found.fits
    said = capsys.readouterr().out
    assert "simulated on 128 workers (mesh 16x8) of h200-ib" in said
    assert said.count("efficiency") == 6
    assert "NVLink" in to.read_text()


def test_plan_cosmoflow(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("plan_cosmoflow").main(64, (4, 2), (2, 8))
    assert found.fits
    said = capsys.readouterr().out
    assert "simulated on 8 workers (mesh 4x2) of dgx-v100" in said
    assert said.count("efficiency") == 2
    assert said.count("conv ") >= 4


def test_unet3d(capsys: pytest.CaptureFixture[str]) -> None:
    losses = example("unet3d").main(cube=8, width=2, epochs=2, workers=2)
    assert len(losses) == 16
    assert statistics.mean(losses[8:]) < statistics.mean(losses[:8])
    said = capsys.readouterr().out
    assert "volumes of (1, 8, 8, 8): split 1 of 2" in said
    assert "float32[1,8,8,8,1,2] @ split 1 of 2" in said
    assert "in each step" in said


@pytest.mark.parametrize("workers", some([1, 3], 2, 1))
def test_logistic_regression(workers: int) -> None:
    losses, right = example("logistic_regression").main(5_000, 6, workers)
    assert all(b <= a + 1e-9 for a, b in pairwise(losses))
    assert losses[-1] == pytest.approx(losses[-2], abs=1e-7)
    assert right > 0.7


@pytest.mark.parametrize("workers", some([1, 3], 2, 0))
def test_power_iteration(workers: int) -> None:
    value, rest = example("power_iteration").main(100, workers)
    assert rest < 1e-5
    assert value == pytest.approx(50, rel=0.05)


@pytest.mark.parametrize("workers", some([1, 3], 2, 1))
def test_pca(workers: int) -> None:
    explained, apart = example("pca").main(5_000, 12, workers)
    assert 0.95 < explained < 1
    assert apart < 1e-12


def test_heat() -> None:
    heat = example("heat")
    alone, together = heat.main(30, 1, 2), heat.main(30, 4, 2)
    np.testing.assert_allclose(alone, together)
    u = np.zeros((30, 30))
    u[0] = 100
    for _ in range(200):
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] = inner + 0.2 * (around - 4 * inner)
    np.testing.assert_allclose(alone, u)


@pytest.mark.parametrize("workers", some([1, 2], 2, 0))
def test_mlp(workers: int) -> None:
    losses, right = example("mlp").main(400, 120, workers)
    assert losses[-1] < 0.3 * losses[0]
    assert right > 0.9


@pytest.mark.parametrize("workers", some([1, 3], 2, 1))
def test_blackscholes(workers: int) -> None:
    blackscholes = example("blackscholes")
    calls, puts, delta = blackscholes.main(20_000, workers)
    assert 7.7 < calls < 8.1
    assert 7.0 < puts < 7.5
    assert delta == pytest.approx(0.54, abs=0.02)
    buy, sell = blackscholes.prices(*(ost.asarray([v]) for v in (42.0, 40.0, 0.5)))
    slope = blackscholes.deltas(*(ost.asarray([v]) for v in (42.0, 40.0, 0.5)))
    found = [float(v[0]) for v in (buy, sell, slope)]
    root = 0.3 * math.sqrt(0.5)
    d = (math.log(42 / 40) + (0.02 + 0.045) * 0.5) / root
    below, left = statistics.NormalDist().cdf, 40 * math.exp(-0.01)
    price = 42 * below(d) - left * below(d - root)
    assert found == pytest.approx([price, price - 42 + left, below(d)], rel=1e-12)


@pytest.mark.parametrize("workers", some([2, 1, 3], 3))
def test_hybrid(
    workers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "machine", "nominal")  # on which messages take their time
    losses, lies = example("hybrid").main(workers=workers)
    assert losses[-1] < 0.95 * losses[0]
    cut = {name: where.partition(" of ")[0] for name, where in lies.items()}
    if workers > 1:
        assert cut["x"] == "split 0", "images are cut where activations are large"
        assert cut["patch"] == "whole"
        assert cut["dense[0]"].startswith("split"), "weights where they are"
        assert cut["dense[1]"].startswith("split")
    assert "dense[0]  float32[2048,2048] @" in capsys.readouterr().out


@pytest.mark.parametrize("workers", some([1, 2], 2, 0))
def test_attention(workers: int) -> None:
    attention = example("attention")
    losses = attention.main(32, 300, workers)
    assert losses[-1] < 0.3 * losses[0]
    q, k, v = (np.random.default_rng(n).normal(size=(2, 3, 5, 4)) for n in range(3))
    found = np.asarray(attention.attention(*map(ost.asarray, (q, k, v))))
    for at in range(5):
        weights = np.exp((k[:, :, : at + 1] @ q[:, :, at, :, None])[..., 0] / 2)
        weights /= weights.sum(-1, keepdims=True)
        wanted = (weights[..., None] * v[:, :, : at + 1]).sum(-2)
        np.testing.assert_allclose(found[:, :, at], wanted, rtol=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_core(workers: int) -> None:
    found = example("out_of_core").main(1 / 64, 1 / 512, workers)
    assert found["peak_bytes"] <= 2**21
    assert found["mean"].shape == (17,)
    np.testing.assert_allclose(
        found["mean"][16], found["mean"][:16] @ np.arange(16) / 16, atol=1e-3
    )
    np.testing.assert_allclose(found["weights"], np.arange(16) / 16, atol=1e-2)
    assert np.isfinite(found["centres"]).all()


def test_mixed_precision(capsys: pytest.CaptureFixture[str]) -> None:
    ends = example("mixed_precision").main(512, 60, 2)
    assert list(ends) == ["f32", "mixed_bf16", "auto", "mixed_f16"]
    for end in ends.values():
        assert end == pytest.approx(ends["f32"], rel=0.1)
    said = capsys.readouterr().out
    assert re.search(r"^float16: [1-9]\d* steps left out, a scale of \d+$", said, re.M)
    assert re.search(r"^rounded   \d of 8 products for tolerance 0\.01", said, re.M)
    assert "measured error beside float64" in said


def test_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    stopped, whole = example("checkpoint").main(100)
    assert stopped["step"] == whole["step"] == 100
    for name in ("w", "speed"):
        assert stopped[name].tobytes() == whole[name].tobytes()
    np.testing.assert_allclose(whole["w"], np.arange(16), atol=0.5)
    said = capsys.readouterr().out
    assert "1 workers go on behind step 80" in said
    assert "checkpoints: [60, 80, 100]" in said


@needs_dask
def test_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("cluster").main(2, points=5_000, steps=20)
    assert found["after"] < 0.5 * found["before"]
    said = capsys.readouterr().out
    assert re.search(r"^2 workers; the dashboard: http://127\.0\.0\.1:\d+/ostinato$", said, re.M)
    assert re.search(r"ms a step, \d+ bytes sent for it$", said, re.M)
    assert found["orders"]["bytes"] < 200 * found["orders"]["messages"]


@needs_dask
def test_a_client_of_a_cluster_that_it_starts_and_of_one_that_runs() -> None:
    client = example("dask_client")
    u = np.random.default_rng(0).normal(size=50) / 50**0.5
    assert client.main(size=50) == pytest.approx(1 + u @ u)
    with contextlib.closing(ost.LocalCluster(2)) as cluster:
        for _ in range(2):  # the workers are free again after the first
            assert client.main(
                cluster.scheduler_address, 50, security=cluster.security
            ) == pytest.approx(1 + u @ u)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("demo").main(str(tmp_path), points=3_000, steps=6)
    said = capsys.readouterr().out
    assert re.search(r"run as [0-9a-f]{12} in .* calls 2-6: .* by the id", said)
    assert "2 all_reduce" in said
    assert "1 plan, 119 hits, 1 miss>" in said
    assert "x.shape: (3000, 16) -> (1000, 16)" in said
    assert {p.name for p in tmp_path.iterdir()} == {"kmeans.svg", "training.svg", "kmeans.plan"}


def test_examples_are_short() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        if path.name != "demo.py":
            assert len(path.read_text().splitlines()) < 70, path.name


def test_the_code_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len([x for x in code.splitlines() if x.strip()]) <= 15
    names: dict[str, Any] = {}
    try:
        exec(compile(code, "README.md", "exec"), names)
    finally:
        session = ost.session()
        session.close()
    assert "README.md:" in capsys.readouterr().out
    assert "29 hits, 1 miss>" in repr(names["lloyd"])


def test_pytorch_feed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch a network learns; without it the example says what to install."""
    if importlib.util.find_spec("torch") is not None:
        right = example("pytorch_feed").main(60, 4)
        assert right[-1] > max(0.8, right[0])
        assert "random_resized_crop" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "torch", None)
    assert example("pytorch_feed").main() == []
    assert capsys.readouterr().out == "this loop is PyTorch's: pip install torch\n"
