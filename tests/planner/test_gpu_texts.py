"""What NVIDIA's compiler says of all kernels of training steps of whole networks at their full size. What a GPU would
be given is compiled, and not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ostinato as ost
from benchmarks.network_systems import MOMENTUM, Ostinato
from benchmarks.network_texts import NETWORKS, Made
from ostinato import nn
from tests import example_models, nvrtc
from tests.fake_device import CONVOLVING, KERNELS
from tests.gpu_texts import compile_texts, texts_of
from tests.sessions import JOB
from tests.test_examples import example
from tests.thorough import THOROUGH

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(
        not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12"
    ),
]
models = pytest.fixture(example_models.models)
SOON = ("cosmoflow", "mlp", "transformer", "resnet18", "lenet5")  # others in a thorough run
HOW = [(CONVOLVING, "as-written")]
if THOROUGH:
    HOW += [(KERNELS, "as-written"), (CONVOLVING, "mixed_bf16"), (KERNELS, "mixed_bf16")]


def soon(names: Any) -> list[Any]:
    return [x for x in names if THOROUGH or (x if isinstance(x, str) else x[1]) in SOON]


def spec(x: Any) -> Any:
    return ost.spec(x.shape, str(x.dtype))


def check(
    monkeypatch: pytest.MonkeyPatch, how: tuple[str, str], step: Callable[..., Any], *given: Any
) -> None:
    device, precision = how
    plan = ost.plan(step, *given, machine="h100", device=device, precision=precision)
    found = texts_of(plan, monkeypatch)
    assert len(found) > 5
    compile_texts(found)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", soon([n.name for n in NETWORKS]))
def test_networks_of_benchmarks(
    name: str, how: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (network,) = [n for n in NETWORKS if n.name == name]
    made = Made(network)
    weights, running, x, y = ost.tree_map(spec, (made.weights, made.running, made.x, made.y))

    def forward(weights: Any, running: Any, x: Any) -> Any:
        return network.text(Ostinato(weights, running, False), x)

    def step(state: Any, x: Any, y: Any) -> Any:
        weights, momenta, running = state

        def value(weights: Any) -> Any:
            f = Ostinato(weights, running, True)
            return network.loss(f, network.text(f, x), y), f.updated

        (found, running), slopes = ost.value_and_grad(value, has_aux=True)(weights)
        momenta = ost.tree_map(lambda m, g: MOMENTUM * m + g, momenta, slopes)
        weights = ost.tree_map(lambda w, m: w - network.rate * m, weights, momenta)
        return forward(weights, running, x), (weights, momenta, running), found

    check(monkeypatch, how, step, (weights, weights, running), x, y)


EXAMPLES = [
    ("magmadnn", "lenet5", (64, 1, 28, 28), (64,)),
    ("resnet", "resnet18", (8, 3, 224, 224), (8,)),
    ("resnet", "resnet50", (8, 3, 224, 224), (8,)),
    ("alexnet", "caffe", (64, 3, 227, 227), (64,)),
    ("inception", "InceptionV3", (8, 3, 299, 299), (8,)),
    ("googlenet", "GoogLeNet", (16, 3, 224, 224), (16,)),
    ("unet", "unet", (1, 1, 64, 64, 64), (1, 64, 64, 64)),
]


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize(("file", "name", "samples", "targets"), soon(EXAMPLES))
def test_networks_of_examples(
    file: str,
    name: str,
    samples: tuple[int, ...],
    targets: tuple[int, ...],
    how: tuple[str, str],
    models: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ost.tree_map(spec, getattr(models(file), name)().init(seed=1))

    def loss(made: Any, y: Any) -> Any:
        heads = made if isinstance(made, tuple) else (made,)
        return sum(nn.cross_entropy(x, y, axis=1) for x in heads)

    step = models("training").step_of(loss)
    given = ost.spec(samples, "float32"), ost.spec(targets, "int64"), 0
    check(monkeypatch, how, lambda *x: step(*x), model, nn.parameters(model), *given)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_step_of_speech(how: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that the example compiles and calls, with what it is given there."""
    speech, taken = example("speech"), list[Any]()

    def compile(**_: Any) -> Any:
        def compiled(function: Any) -> Any:
            def call(*given: Any) -> Any:
                taken.extend((function, *given))
                raise KeyboardInterrupt

            return call

        return compiled

    with monkeypatch.context() as patch:
        patch.setattr(ost, "compile", compile)
        with pytest.raises(KeyboardInterrupt):
            speech.main(1)
    check(monkeypatch, how, *taken)
