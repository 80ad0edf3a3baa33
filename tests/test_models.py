"""The networks of examples/models: as large as the published ones, and they learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import nn
from tests import example_models
from tests.thorough import THOROUGH

models = pytest.fixture(autouse=True)(example_models.models)


# (file, function, ...): parameters, multiply-adds in millions, options, a sample's shape
COUNTS: Any = {
    ("alexnet", "caffe"): (60_965_224, 724.4, {}, (3, 227, 227)),
    ("alexnet", "AlexNet"): (61_100_840, 714.2, {}, (3, 224, 224)),
    ("googlenet", "GoogLeNet"): (6_998_552, 1_582.7, {"heads": False}, (3, 224, 224)),
    ("googlenet", "GoogLeNet", "heads"): (13_378_280, 1_582.7, {}, (3, 224, 224)),
    ("googlenet", "GoogLeNet", "norm"): (13_385_816, 1_582.7, {"norm": True}, (3, 224, 224)),
    ("googlenet", "GoogLeNet", "3x3"): (
        13_004_888,
        1_498.4,
        {"norm": True, "five": 3},
        (3, 224, 224),
    ),
    ("inception", "InceptionV3"): (23_834_568, 5_713, {"head": False}, (3, 299, 299)),
    ("inception", "InceptionV3", "head"): (27_161_264, 5_713, {}, (3, 299, 299)),
    ("resnet", "resnet18"): (11_689_512, 1_814, {}, (3, 224, 224)),
    ("resnet", "resnet50"): (25_557_032, 4_089, {}, (3, 224, 224)),
    ("cosmoflow", "cosmoflow"): (8_907_556, 34_430, {}, (4, 128, 128, 128)),
    ("cosmoflow", "cosmoflow", "256"): (15_985_956, 279_043, {"cube": 256}, (4, 256, 256, 256)),
    ("unet", "unet"): (19_071_459, 1_954_000, {}, (1, 128, 128, 128)),
    ("transformer", "Transformer"): (10_844_160, 3_045.06, {}, (256,)),
    ("language", "Language"): (7_103_456, 242.424, {}, (35,)),
    ("tdnnf", "TDNNF"): (5_210_944, 512.784, {}, (150, 220)),
    ("magmadnn", "mlp"): (397_510, 0.397, {}, (1, 28, 28)),
    ("magmadnn", "lenet5"): (61_706, 0.4165, {}, (1, 28, 28)),
}


@pytest.mark.parametrize("which", COUNTS, ids="-".join)
def test_counts_are_the_published_ones(which: tuple[str, ...], models: Any) -> None:
    """Of whole networks, of which nothing is computed."""
    parameters, millions, options, shape = COUNTS[which]
    model = getattr(models(which[0]), which[1])(**options)
    samples = [ost.spec((n, *shape), "int64" if len(shape) == 1 else "float32") for n in (1, 2)]
    found = nn.summary(model, samples[0])
    assert found.parameters == parameters
    assert found.multiply_adds / 1e6 == pytest.approx(millions, rel=3e-4 if millions > 1 else 2e-3)
    twice = nn.summary(model, samples[1])
    assert twice.multiply_adds == 2 * found.multiply_adds


def test_a_network_of_many_sizes_ends_at_the_same(models: Any) -> None:
    cosmoflow = models("cosmoflow").cosmoflow
    for cube in (16, 64):
        assert nn.summary(cosmoflow(cube), (2, 4, *(cube,) * 3)).rows[0].shapes == ((2, 4),)
    unet = models("unet").unet
    found = nn.summary(unet(2, 5, width=4, levels=2), (1, 2, 8, 12, 16))
    assert found.rows[0].shapes == ((1, 5, 8, 12, 16),)


def test_names_of_weights_are_those_of_torchvision(models: Any) -> None:
    names = nn.named_weights(models("resnet").resnet50())
    assert len(names) == 267
    assert names["layer1.0.downsample.1.running_var"].shape == (256,)
    assert names["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    names = nn.named_weights(models("alexnet").AlexNet())
    assert names["features.10.weight"].shape == (256, 256, 3, 3)
    assert names["classifier.6.bias"].shape == (1000,)


def test_bottlenecks_become_semi_orthogonal(models: Any) -> None:
    weight = ost.asarray(np.random.default_rng(0).normal(size=(48, 12)))
    for w in (weight, weight.T):
        for _ in range(30):
            w = models("tdnnf").constrained(w)
        p = np.asarray(w.T @ w if w.shape[0] > w.shape[1] else w @ w.T)
        np.testing.assert_allclose(p, np.eye(12) * p[0, 0], atol=1e-6)


SMALL: Any = [
    ("cosmoflow", {"steps": 12}, 0.6),
    ("magmadnn", {"steps": 8}, 0.7),
    ("transformer", {"blocks": 1, "steps": 12}, 0.8),
    ("language", {}, 0.85),
    ("tdnnf", {"steps": 8}, 0.4),
    pytest.param("alexnet", {"part": 16, "image": 67}, 0.8, marks=pytest.mark.slow),
    pytest.param("resnet", {"steps": 10}, 0.4, marks=pytest.mark.slow),
    pytest.param("unet", {"steps": 8}, 0.8, marks=pytest.mark.slow),
    pytest.param("googlenet", {"part": 16, "steps": 8}, 0.85, marks=pytest.mark.slow),
]
if THOROUGH:  # as resnet and googlenet, but for how much there is to plan
    SMALL += [
        ("resnet", {"depth": 50, "width": 4, "steps": 6}, 0.4),
        ("inception", {"steps": 6}, 0.5),
    ]


@pytest.mark.parametrize(("name", "options", "share"), SMALL)
def test_losses_fall(name: str, options: dict[str, Any], share: float, models: Any) -> None:
    found = models(name).main(**options)
    runs = found if isinstance(found[0], list) else [found]
    for losses in runs:
        assert np.isfinite(losses).all()
        assert min(losses) < share * losses[0]
