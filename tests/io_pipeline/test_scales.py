"""Decoding in a smaller scale: a mode of its own, with the same bits by any library, and close to the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from ostinato.io_pipeline.images import decode
from ostinato.io_pipeline.images.decode import Decode
from ostinato.io_pipeline.images.geometry import resized

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.io_pipeline.pictures import encoded, picture
from tests.io_pipeline.test_pipes import joined, same

REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def reduced(data: bytes, k: int) -> np.ndarray[Any, Any]:
    found = cv2.imdecode(np.frombuffer(data, np.uint8), REDUCED[k])
    assert found is not None
    return cv2.cvtColor(found, cv2.COLOR_BGR2RGB)


@pytest.mark.parametrize("has_simplejpeg", [True, False])
@pytest.mark.parametrize(("height", "width"), [(240, 320), (375, 501), (97, 131)])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_scales_are_libjpegs(
    monkeypatch: pytest.MonkeyPatch, has_simplejpeg: bool, height: int, width: int, k: int
) -> None:
    if not has_simplejpeg:
        monkeypatch.setattr(decode, "simplejpeg", lambda: None)
    data = encoded(picture(1, height, width), quality=90)
    stage = Decode(scale="fast")
    size = height // k, width // k
    found = stage.shrunk(data, (0, 0, height, width), size)
    assert found is not None
    whole = reduced(data, k)
    tall, wide = (height + k // 2) // k, (width + k // 2) // k
    np.testing.assert_array_equal(found, whole[:tall, :wide])
    assert stage.shrunk(data, (0, 0, height, width), (height // 2 + 1, 4)) is None
    if k < 8:
        smaller = stage.shrunk(data, (0, 0, height, width), (height // k - 1, width // k))
        assert smaller is not None
        assert smaller.shape == found.shape
    assert Decode().shrunk(data, (0, 0, height, width), size) is None


@pytest.mark.parametrize("seed", range(20))
def test_windows_lie_within(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(40, 300, 2).tolist()
    data = encoded(picture(seed, height, width), quality=90)
    h, w = int(rng.integers(16, height + 1)), int(rng.integers(16, width + 1))
    top, left = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
    size = int(rng.integers(1, h // 2 + 1)), int(rng.integers(1, w // 2 + 1))
    found = Decode(scale="fast").shrunk(data, (top, left, h, w), size)
    assert found is not None
    assert found.shape[0] >= size[0]
    assert found.shape[1] >= size[1]
    full = picture(seed, height, width)[top : top + h, left : left + w]
    off = np.abs(resized(full, (8, 8), "area").astype(int) - resized(found, (8, 8), "area"))
    assert off.mean() < 14


def images(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{k}.jpg" for k in range(8)]
    for k, path in enumerate(paths):
        path.write_bytes(encoded(picture(k, 300 + 10 * k, 400), quality=90))
    return [str(p) for p in paths]


def test_pipes_make_smaller_images_of_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = images(tmp_path)
    base = ost.io.images(files, labels=list(range(8))).shuffle(seed=1)

    def pipe(scale: str, **more: Any) -> Any:
        crop = base.decode(scale=scale).random_resized_crop(32, scale=(0.5, 1.0))
        return crop.batch(4).to("numpy").run_with(**more)

    used, really = [], Decode._at
    monkeypatch.setattr(Decode, "_at", lambda self, x, k: used.append(k) or really(self, x, k))
    full = joined(pipe("full").epoch(0))
    assert not used
    fast = joined(pipe("fast").epoch(0))
    assert {*used} <= {4, 8}
    assert len(used) == 8
    np.testing.assert_array_equal(full[1], fast[1])
    assert not np.array_equal(full[0], fast[0])
    assert np.abs(full[0].astype(int) - fast[0]).mean() < 8
    same(joined(pipe("fast", threads=3, chunk=1).epoch(0)), fast)
    assert pipe("fast").identity() != pipe("full").identity()
    (whole, *_), *_ = joined(
        base.decode(scale="fast").resize((30, 40)).batch(1).to("numpy").epoch(0)
    )
    index = int(joined(base.batch(8).to("numpy").epoch(0))[1][0])
    data = Path(files[index]).read_bytes()
    np.testing.assert_array_equal(whole, resized(reduced(data, 8), (30, 40), "linear"))
    used.clear()
    for sized in (base.decode(scale="fast").resize(32), base.decode(scale="fast").center_crop(32)):
        list(sized.to("numpy").epoch(0))
    assert not used  # the other side would be another, or nothing is made smaller
    cached = base.decode(scale="fast").cache().random_resized_crop(32, scale=(0.5, 1.0))
    same(joined(cached.batch(4).to("numpy").epoch(0)), full)


def test_what_no_scale_is(tmp_path: Path) -> None:
    files = images(tmp_path)
    base = ost.io.images(files)
    with pytest.raises(ArgumentError, match=r"decode .*got scale='half'; needed 'full' or 'fast'"):
        base.decode(scale="half")
    with pytest.raises(
        ArgumentError, match=r"cache .*got where='auto' behind decode\(scale='fast'\)"
    ):
        base.decode(scale="fast").resize((8, 8)).cache(where="auto")
    broken = Path(files[3])
    broken.write_bytes(broken.read_bytes()[:2000])
    pipe = base.decode(scale="fast").resize((8, 8)).on_error("skip", most=1).batch(8).to("numpy")
    assert len(next(pipe.epoch(0))) == 7
