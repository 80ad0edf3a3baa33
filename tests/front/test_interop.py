"""Arrays of ours in other libraries, and theirs in ours: what each asks for, by stand-ins where it is large."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.dlpack import _name, _pointer

import ostinato as ost


class Tensor:
    """What is asked of a tensor of PyTorch's."""

    def __init__(self, values: np.ndarray[Any, Any], dtype: str = "torch.float32") -> None:
        self.values, self.dtype, self.asked = values, dtype, 0

    def detach(self) -> Tensor:
        found = Tensor(self.values, self.dtype)
        found.asked = 1
        return found

    def cpu(self) -> Tensor:
        return self

    resolve_conj = resolve_neg = cpu

    def view(self, dtype: Any) -> Tensor:
        assert dtype == "int16"
        return Tensor(self.values.view(np.int16), "torch.int16")

    def numpy(self) -> np.ndarray[Any, Any]:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        if not self.asked:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.numpy()


Tensor.__module__ = "torch"


def test_tensors_with_gradients_and_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("torch")
    fake.int16 = "int16"
    monkeypatch.setitem(sys.modules, "torch", fake)
    values = np.asarray([1.5, -2.0, 3.25], np.float32)
    assert ost.asarray(Tensor(values)).tolist() == values.tolist()
    x = ost.asarray(Tensor(values.astype(ost.bfloat16), "torch.bfloat16"))
    assert x.dtype == ost.bfloat16
    assert x.tolist() == values.tolist()


@pytest.mark.parametrize(("version", "at"), [((1, 0), 52), (None, 20)])
def test_bfloat16_through_dlpack(version: tuple[int, int] | None, at: int) -> None:
    """The capsule says bfloat16 and has its bits; who asks with a version is lent the memory."""
    x = ost.asarray([1.0, -2.0], dtype=ost.bfloat16)
    capsule = x.__dlpack__(max_version=version)
    name = _name(capsule)
    assert name == (b"dltensor_versioned" if version else b"dltensor")
    address = _pointer(capsule, name)
    code, bits, lanes = (
        ctypes.c_uint8.from_address(address + at).value,
        ctypes.c_uint8.from_address(address + at + 1).value,
        ctypes.c_uint16.from_address(address + at + 2).value,
    )
    assert (code, bits, lanes) == (4, 16, 1)
    data = ctypes.c_void_p.from_address(address + at - 20).value
    assert data
    assert ctypes.string_at(data, 4) == np.asarray(x).tobytes()


def test_jax_is_given_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("jax.numpy")
    fake.asarray = lambda x: ("jax", x.tolist())
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax.numpy", fake)
    assert ost.arange(3).__jax_array__() == ("jax", [0, 1, 2])


def test_names_that_xarray_calls() -> None:
    """As it finds them in the namespace of the array, with NumPy's parameters."""
    x = np.asarray([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    ours = ost.asarray(x)
    for name in ("nanmean", "nanstd", "nanvar", "nansum", "nanprod"):
        got = getattr(ost, name)(ours, axis=0, dtype=None)
        assert np.allclose(got, getattr(np, name)(x, axis=0), equal_nan=True), name
    assert np.allclose(ost.nanvar(ours, axis=1, ddof=1), np.nanvar(x, axis=1, ddof=1))
    assert ost.nanmean(ours, dtype=np.float32).dtype == np.float32
    for name in ("nancumsum", "nancumprod"):
        want = getattr(np, name)(x, axis=1)
        assert np.array_equal(getattr(ost, name)(ours, axis=1), want)
        assert np.array_equal(getattr(np, name)(ours, axis=1), want)
    padded = ost.pad(ours, 1, mode="constant", constant_values=7.0)
    assert np.array_equal(np.asarray(padded), np.pad(x, 1, constant_values=7.0), equal_nan=True)
    assert np.array_equal(ost.diff(ours[:, 0], 1), np.diff(x[:, 0], 1))
    assert ours.view("B").tobytes() == x.tobytes()


def test_xarray() -> None:
    xr = pytest.importorskip("xarray")
    x = np.arange(12.0).reshape(4, 3)
    ours = xr.DataArray(ost.asarray(x), dims=("a", "b"), coords={"a": [0, 0, 1, 1]})
    theirs = xr.DataArray(x, dims=("a", "b"), coords={"a": [0, 0, 1, 1]})
    for act in (
        lambda d: d + 1,
        lambda d: d.mean("a"),
        lambda d: d.groupby("a").mean(),
        lambda d: d.where(d > 3),
        lambda d: d.cumsum("a"),
        lambda d: d.pad(b=1),
        lambda d: d.median("a"),
    ):
        got = act(ours)
        assert isinstance(got.data, ost.Array)
        assert np.allclose(got.values, act(theirs).values, equal_nan=True)


# -- xarray, pandas, Pillow, Dask, JAX, PyTorch ------------------------------------------------
XARRAY: list[Any] = [
    lambda d: (d * 2 + d.mean("a")) ** 2,
    lambda d: d.groupby("a").map(lambda g: g - g.mean()),
    lambda d: d.groupby("a").std(),
    lambda d: d.rolling(b=2).mean(),
    lambda d: d.coarsen(a=2).sum(),
    lambda d: d.quantile(0.3, "a"),
    lambda d: d.dot(d, dim="a"),
    lambda d: d.shift(b=1).fillna(0),
    lambda d: d.stack(k=("a", "b")),
    lambda d: d.weighted(abs(d.isel(b=0, drop=True))).mean("a"),
    lambda d: d.sel(b="y"),
    lambda d: d.to_dataset(name="q").mean()["q"],
    lambda d: np.exp(d).clip(0, 3).round(1),
    lambda d: np.any(d > 3, axis=0) & np.all(d > 1, axis=0),
    lambda d: d.assign_coords(a=np.arange(4.0)).interp(a=[0.5, 2.0]),
]


@pytest.mark.parametrize("act", XARRAY)
def test_what_xarray_does_with_ours(act: Any) -> None:
    xr = pytest.importorskip("xarray")
    x = np.arange(12.0).reshape(4, 3) % 5
    made = [
        act(xr.DataArray(v, dims=("a", "b"), coords={"a": [0, 0, 1, 1], "b": list("xyz")}))
        for v in (ost.asarray(x), x)
    ]
    np.testing.assert_allclose(made[0].values, made[1].values)


def test_xarray_writes_ours_to_zarr(tmp_path: Any) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    x = np.arange(6.0).reshape(2, 3)
    ours = xr.DataArray(ost.asarray(x), dims=("a", "b"), name="q")
    (ours + 1).to_dataset().to_zarr(tmp_path / "q.zarr", consolidated=False)
    np.testing.assert_array_equal(
        xr.open_zarr(tmp_path / "q.zarr", consolidated=False)["q"].values, x + 1
    )


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    x = np.arange(6.0).reshape(3, 2)
    frame = pd.DataFrame(ost.asarray(x), columns=["a", "b"])
    assert frame.equals(pd.DataFrame(x, columns=["a", "b"]))
    assert pd.DataFrame({"k": ost.arange(3)}).dtypes.tolist() == [np.dtype(np.int64)]
    np.testing.assert_array_equal(ost.asarray(frame), x)
    assert float(ost.compile(lambda d: d.sum())(frame)) == 15
    column = frame["a"]
    np.testing.assert_array_equal(np.asarray(column * ost.arange(3)), x[:, 0] * [0, 1, 2])
    np.testing.assert_array_equal(np.asarray(ost.arange(3) * column), x[:, 0] * [0, 1, 2])
    assert frame.assign(c=ost.ones(3))["c"].sum() == 3


def test_pillow() -> None:
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (4, 5, 3), np.uint8)
    image = Image.fromarray(pixels)
    x = ost.asarray(image)
    np.testing.assert_array_equal(x, pixels)
    np.testing.assert_array_equal(np.asarray(Image.fromarray(np.asarray(255 - x))), 255 - pixels)
    with pytest.raises(AttributeError, match=r"__array_interface__'; write np\.asarray\(x\)"):
        Image.fromarray(x)


def test_dask_both_ways() -> None:
    """Its chunks are read when ours are; ours are read when its chunks are."""
    da = pytest.importorskip("dask.array")
    asked = []

    def block(values: Any, block_info: Any = None) -> Any:
        asked.append(1)
        return values + 1

    theirs = da.ones((6, 2), chunks=(3, 2)).map_blocks(block, dtype=float, meta=np.ones((0, 0)))
    ours = ost.from_dask(theirs)
    back = (ours * 2).to_dask()
    np.testing.assert_array_equal(back.compute(), np.full((6, 2), 4.0))
    assert len(asked) == 2
    assert isinstance(da.from_array(ost.asarray(np.ones((4, 2))), chunks=2), da.Array)
    assert float(da.from_array(ost.asarray(np.ones((4, 2))), chunks=2).sum().compute()) == 8


def test_jax_itself() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = ost.arange(3, dtype=ost.float32)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(x)), [0, 1, 2])
    assert type(x.__jax_array__()) is type(jnp.ones(3))
    assert ost.asarray(jnp.ones(3, dtype=jnp.bfloat16)).dtype == ost.bfloat16
    np.testing.assert_array_equal(np.asarray(x + np.asarray(jnp.ones(3))), [1, 2, 3])


def test_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(3, dtype=torch.bfloat16, requires_grad=True)
    ours = ost.asarray(x)
    assert ours.dtype == ost.bfloat16
    assert torch.equal(torch.from_dlpack(ours).cpu(), x.detach())
    assert ost.from_dlpack(x.detach()).dtype == ost.bfloat16
    np.testing.assert_array_equal(torch.tensor(np.asarray(ost.arange(3))).numpy(), [0, 1, 2])


# -- scikit-learn's own checks -------------------------------------------------------------------
CHECKED = """
import os
os.environ["SCIPY_ARRAY_API"] = "1"
import warnings
import numpy as np
import ostinato as ost
import sklearn
from sklearn import metrics
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import check_array_api_input

sklearn.set_config(array_api_dispatch=True)
warnings.simplefilter("ignore")
done = 0
for estimator, values in [
    (StandardScaler(), True), (MinMaxScaler(), True), (PCA(2, svd_solver="full"), True),
    (PCA(2, svd_solver="covariance_eigh", whiten=True), True), (Ridge(solver="svd"), True),
    (LinearDiscriminantAnalysis(), True), (LogisticRegression(), False),
    (GaussianMixture(2, covariance_type="diag", init_params="random", random_state=0), True),
]:
    name = type(estimator).__name__
    for dtype in ("float64", "float32"):
        check_array_api_input(name, estimator, "ostinato", None, dtype, check_values=values)
        done += 1

rng = np.random.default_rng(0)
x = rng.normal(size=(60, 5))
y = (x[:, 0] + 0.1 * rng.normal(size=60) > 0).astype(int)
z, p = x @ np.arange(5.0), (x[:, 1] > 0).astype(int)
ours = [ost.asarray(v) for v in (x, y, z, p)]
for pipe, target in [
    (make_pipeline(StandardScaler(), PCA(2, svd_solver="full"), LinearDiscriminantAnalysis()), 1),
    (make_pipeline(MinMaxScaler(), Ridge(solver="svd")), 2),
]:
    wanted = pipe.fit(x, (x, y, z, p)[target]).predict(x)
    found = pipe.fit(ours[0], ours[target]).predict(ours[0])
    assert type(found) is ost.Array
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-8)
    done += 1
share = 1 / (1 + np.exp(-x[:, 0]))
cases = [(n, y, p) for n in ("accuracy_score", "f1_score", "confusion_matrix", "zero_one_loss")]
cases += [(n, y, share) for n in ("roc_auc_score", "log_loss", "roc_curve", "brier_score_loss")]
cases += [(n, z, z + x[:, 0]) for n in ("r2_score", "mean_squared_error", "max_error")]
for name, a, b in cases:
    measure = getattr(metrics, name)
    found, wanted = measure(ost.asarray(a), ost.asarray(b)), measure(a, b)
    several = isinstance(wanted, tuple)
    for f, w in zip(found if several else [found], wanted if several else [wanted]):
        np.testing.assert_allclose(np.asarray(f), w, rtol=1e-8, err_msg=name)
    done += 1
print(done)
"""


@pytest.mark.cpu_only
@pytest.mark.slow
def test_scikit_learns_own_checks() -> None:
    """With `array_api_dispatch=True`, where it computes with our operations and gives our arrays."""
    pytest.importorskip("sklearn")
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", CHECKED],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not ran.returncode, ran.stderr[-3000:]
    assert int(ran.stdout) == 29


@pytest.mark.parametrize(
    "name", ["fft", "linalg", "nn", "optim", "random", "signal", "solve", "special", "training"]
)
def test_what_has_a_name_can_be_imported_by_it(name: str) -> None:
    """`from ostinato.nn import Conv`: the module that `ost.nn` is, and not another one."""
    found = importlib.import_module(f"ostinato.{name}")
    assert found is getattr(ost, name)
    assert all(hasattr(found, public) for public in found.__all__)
    stub = Path(ost.__file__).with_name(f"{name}.pyi")  # what type checkers read in its place
    if found.__name__ != f"ostinato.{name}":
        lines = re.findall(r"from (\S+) import (\S+)", stub.read_text())
        named = [importlib.import_module(at).__all__ if x == "*" else [x] for at, x in lines]
        assert {public for names in named for public in names} == {*found.__all__}
