"""Layers are data: what a call reads, what it makes, and what a training step leaves alone."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten, unflatten

import ostinato as ost
from ostinato import nn
from ostinato.errors import ArgumentError, AssignmentError, DataFileError, ShapeError

RNG = np.random.default_rng(7)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def network() -> Any:
    return nn.Sequential(
        nn.Conv(3, 4, 3, padding=1),
        nn.BatchNorm(4),
        nn.relu,
        nn.Residual(nn.Conv(4, 4, 3, padding="same"), nn.GroupNorm(2, 4), activation=nn.relu),
        nn.Branches(nn.Conv(4, 2, 1), nn.MaxPool(3, stride=1, padding=1)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(6 * 36, 5),
    )


@ost.compile
def step(model: Any, x: Any, y: Any, key: int, rate: float) -> Any:
    def loss(parameters: Any) -> Any:
        scores, new = nn.combine(parameters, model).apply(x, key=key)
        return nn.cross_entropy(scores, y), new

    weights = nn.parameters(model)
    (value, model), slopes = ost.value_and_grad(loss, has_aux=True)(weights)
    weights = ost.tree_map(lambda w, g: w - rate * g, weights, slopes)
    return nn.combine(weights, model), value


def test_a_network_learns_the_same_on_any_number_of_workers() -> None:
    x, y = data(6, 3, 6, 6), np.arange(6) % 5
    ends = [_losses(x, y, workers) for workers in (1, 3)]
    close(*ends, 1e-3)


def _losses(x: Any, y: Any, workers: int) -> list[float]:
    with ost.connect(workers=workers):
        model = network().init(seed=3)
        first = model
        losses, misses = [], []
        for k in range(12):
            model, value = step(model, x, y, k, 0.05)
            losses.append(float(value))
            misses.append(len(step.misses))
        assert losses[-1] < 0.5 * losses[0]
        assert misses[1] == misses[-1], "another key or rate is no other plan"
        assert not np.asarray(first[1].running_mean).any(), "the model before is what it was"
        mean = np.asarray(model[1].running_mean)
        assert mean.any()
        again, _ = step(first, x, y, 0, 0.05)
        once = np.asarray(step(first, x, y, 0, 0.05)[0][7].weight)
        assert np.array_equal(once, np.asarray(again[7].weight)), "the same key draws the same"
    return losses


def test_only_arrays_are_leaves() -> None:
    model = nn.Sequential(nn.Conv(2, 2, 3, stride=2), nn.relu, nn.Dropout(0.25)).init()
    leaves, structure = flatten(model)
    assert [x.shape for x in leaves] == [(2, 2, 3, 3), (2,)]
    again = unflatten(structure, leaves)
    assert again[0].stride == 2
    assert again[1] is nn.relu
    assert again[2].rate == 0.25
    assert flatten(again)[1] == structure
    others = [
        model.replace(layers=(model[0].replace(stride=True + 0.0 * 1j), *model[1:])),
        model.replace(layers=(model[0].replace(stride=1), *model[1:])),
        model.replace(layers=(model[0], nn.gelu, model[2])),
        model.replace(layers=(model[0], nn.relu, nn.Dropout(-0.0))),
    ]
    assert len({structure, *(flatten(other)[1] for other in others)}) == 5
    holed = ost.tree_map(lambda x: None, model)
    assert flatten(holed)[0] == []
    assert nn.combine(holed, model)[0].weight is model[0].weight


def test_hyperparameters_are_part_of_the_signature() -> None:
    run = ost.compile(lambda model, x: model(x))
    x = data(2, 2, 6, 6)
    x = ost.asarray(x)
    conv = nn.Conv(2, 2, 3, stride=2).init()
    values = [float(v.sum()) for v in (x, conv.weight, conv.bias)]  # all are there from now on
    shapes = [run(conv.replace(stride=s), x).shape for s in (2, 2, 1, 1, 2, 1, 2)]
    assert [s[-1] for s in shapes] == [2, 2, 4, 4, 2, 4, 2]
    assert (run.hits, len(run.misses), len(values)) == (5, 2, 3)
    x = ost.asarray(np.float32([-1, 1])) * 1
    few = float(x.sum())
    order = (nn.relu, nn.relu, nn.tanh, nn.tanh, nn.relu, nn.Dropout(0.5), nn.Dropout(-0.0))
    made = [run(nn.Sequential(f), x) for f in order]
    wanted = [0, 0, np.tanh(-1), np.tanh(-1), 0, -1, -1]
    assert [float(y[0]) + few for y in made] == pytest.approx(wanted)
    x = data(2, 2, 6, 6)
    pools = [nn.MaxPool(2), nn.MaxPool(2, stride=1), nn.AvgPool(2), nn.MaxPool(2)]
    assert [run(p, x).shape[-1] for p in pools] == [3, 5, 3, 3]


def test_train_is_an_argument_and_reaches_all() -> None:
    class Deep(nn.Layer):
        inner: Any
        frozen: Any

        def forward(self, x: Any) -> Any:
            return self.frozen(self.inner(x), train=False)

    x = data(8, 2) * 3 + 1
    model = Deep({"norms": [nn.BatchNorm(2)]}["norms"][0], nn.BatchNorm(2)).init()
    y, new = model.apply(x)
    close(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) / np.sqrt(1 + 1e-5), 1e-4)
    close(new.inner.running_mean, 0.1 * x.mean(0))
    close(new.inner.running_var, 0.9 + 0.1 * x.var(0, ddof=1))
    assert new.frozen is model.frozen
    close(model(x), x, 1e-4)
    close(model(x, train=False), x, 1e-4)
    with pytest.raises(ArgumentError, match=r"model\.apply"):
        model(x, train=True)
    twice = nn.Sequential(new.inner, new.inner)
    after = twice.apply(x)[1][0]
    assert after is not new.inner
    mean = 0.9 * (0.9 * np.asarray(new.inner.running_mean) + 0.1 * x.mean(0))
    close(after.running_mean, mean)  # the second one's batch has a mean of 0


def test_a_compiled_function_within_a_call_is_told_by_itself() -> None:
    drop = nn.Dropout(0.5)
    inner = ost.compile(lambda layer, x, train: layer(x, train=train))
    asks = ost.compile(lambda layer, x: layer(x))

    class Outer(nn.Layer):
        def forward(self, x: Any, how: Any) -> Any:
            return how(drop, x)

    x = np.ones(64, np.float32)
    told = Outer().apply(x, lambda layer, v: inner(layer, v, True))[0]
    assert 0 < int((told == 0).sum()) < 64
    with pytest.raises(ArgumentError, match="train="):
        Outer().apply(x, asks)


def test_statistics_leave_what_is_computed_again_as_results() -> None:
    class Again(nn.Layer):
        block: Any

        def forward(self, x: Any, right: bool) -> Any:
            if not right:
                return ost.checkpoint(lambda block, v: block(v))(self.block, x)
            y, block = ost.checkpoint(lambda block, v: block.apply(v))(self.block, x)
            self.update(block=lambda old: block)
            return y

    model = Again(nn.Sequential(nn.BatchNorm(2), nn.tanh)).init()
    x = data(8, 2) * 3 + 1
    with pytest.raises(ArgumentError, match=r"layer\.apply"):
        model.apply(x, False)

    def loss(weights: Any, how: Any) -> Any:
        y, new = how(nn.combine(weights, model))
        return (y * y).sum(), new

    ways = (lambda m: m.apply(x, True), lambda m: m.block.apply(x))
    (_, new), slopes = ost.value_and_grad(loss, has_aux=True)(nn.parameters(model), ways[0])
    (_, plain), wanted = ost.value_and_grad(loss, has_aux=True)(nn.parameters(model), ways[1])
    close(new.block[0].running_var, plain[0].running_var)
    for a, b in zip(flatten(slopes)[0], flatten(wanted)[0], strict=True):
        close(a, b)


def test_keys_say_what_is_dropped() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.5))
    x = np.ones((4, 200), np.float32)
    first = np.asarray(model(x, train=True, key=5))
    assert np.array_equal(first, np.asarray(model(x, train=True, key=np.int64(5))))
    assert not np.array_equal(first, np.asarray(model(x, train=True, key=6)))
    assert 0.15 < (first > 0).mean() < 0.35, "two layers draw two masks"
    assert set(np.unique(first)) == {0.0, 4.0}
    assert np.array_equal(np.asarray(model(x)), x)

    class Twice(nn.Layer):
        drop: Any

        def forward(self, x: Any) -> Any:
            return self.drop(self.drop(x, train=True), train=True)

    both = np.asarray(Twice(nn.Dropout(0.5))(x, key=3))
    assert 0.15 < (both > 0).mean() < 0.35, "the key is the whole call's"
    free = [np.asarray(model(x, train=True)) for _ in range(2)]
    assert not np.array_equal(*free)


def test_first_weights_are_of_seed_and_place_alone() -> None:
    found = []
    for workers in (1, 3):
        with ost.connect(workers=workers):
            model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).init(seed=4)
            found.append([np.asarray(x) for x in flatten(model)[0]])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert not np.array_equal(found[0][0], found[0][2]), "equal layers have other weights"
    longer = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)).init(seed=4)
    assert np.array_equal(np.asarray(longer[1].weight), found[0][2])
    assert not np.array_equal(
        np.asarray(nn.Linear(5, 5).init(1).weight), nn.Linear(5, 5).init(2).weight
    )
    kept = nn.init(nn.Sequential(longer[0], nn.Linear(5, 1)), seed=9)
    assert np.array_equal(np.asarray(kept[0].weight), found[0][0])
    assert nn.BatchNorm(3).init(dtype="float64").running_var.dtype == np.float64
    with pytest.raises(ArgumentError, match=r"ost\.nn\.init"):
        nn.Sequential(nn.Linear(2, 2))(np.ones((1, 2)))


def test_parameters_are_what_gradients_and_optimizers_see() -> None:
    model = nn.Sequential(nn.BatchNorm(3), {"head": nn.Linear(3, 2)}["head"]).init()
    weights, rest = nn.partition(model)
    assert weights[0].running_mean is None
    assert rest[1].weight is None
    whole = flatten(model)[1]
    assert flatten(nn.combine(weights, rest))[1] == flatten(nn.combine(rest, weights))[1] == whole
    frozen = nn.parameters(model, lambda name: name.endswith("bias"))
    assert frozen[1].weight is None
    assert frozen[1].bias is not None
    slopes = ost.grad(lambda w: nn.combine(w, model)(data(2, 3)).sum())(frozen)
    assert flatten(slopes)[1] == flatten(frozen)[1]
    with pytest.raises(ArgumentError, match="parts of one model"):
        nn.combine(weights, nn.Sequential(nn.BatchNorm(3)))


def test_trees_of_flags_go_with_those_of_weights() -> None:
    """A function makes them of a model's weights, for decay and the like."""
    model = nn.Sequential(nn.Linear(2, 3), [nn.BatchNorm(3), {"x": nn.Linear(3, 1)}][0]).init()
    weights = nn.parameters(model)
    flags = ost.tree_map(lambda w: w.ndim > 1, weights)
    kept = ost.tree_map(lambda w, flag: w if flag else None, weights, flags)
    assert kept[0].weight is weights[0].weight
    assert kept[0].bias is kept[1].weight is None
    names = ost.tree_map(lambda w, name: (w.shape, name), weights, ost.tree_map(str, weights))
    assert names[0].bias[0] == (3,)
    for wrong in (flags[0], nn.Sequential(flags[0]), nn.Sequential(flags[0], flags[0])):
        with pytest.raises(ValueError, match="different structure"):
            ost.tree_map(lambda w, flag: w, weights, wrong)
    for tree in ({"a": 1, "b": 2}, {"b": 1}, {}, [1], {"a": [1]}, {"a": None}, None, 1):
        with pytest.raises(ValueError, match="different structure"):
            ost.tree_map(lambda w, flag: w, {"a": 1}, tree)


def test_what_stands_for_a_leaf_is_one() -> None:
    """Whatever code of users, and of ours, puts in place of arrays."""

    class Kept(nn.Layer):
        def __init__(self) -> None:
            self.many = [nn.Linear(2, 1), {"a": nn.BatchNorm(1), "b": 3}]
            self.few = (np.zeros(2), 4.0)

    model = Kept().init()
    leaves, structure = flatten(model)
    for values in (range(7), ["x"] * 7, [True] * 7, [0.0, *leaves[1:]], leaves):
        found, again = flatten(unflatten(structure, list(values)))
        assert (
            found == list(values)
            if values is not leaves
            else all(map(np.array_equal, found, leaves))
        )
        assert again == structure
        assert again.leaves == 7
    holes = unflatten(structure, [None, (1, 2), *leaves[2:]])
    found, around = flatten(holes)
    assert found[:2] == [1, 2]
    assert len(found) == 7
    assert around != structure
    assert flatten(unflatten(around, found))[1] == around
    made = unflatten(structure, leaves)
    made.later = np.ones(1)
    made.many.append(5)
    del made.many[1]["b"]
    assert len(flatten(made)[0]) == 8
    assert pickle.loads(pickle.dumps(made.few))[1] == 4.0
    twin = copy.deepcopy(made)
    assert flatten(twin)[1] == flatten(made)[1]


def test_layers_do_not_change_and_say_what_they_are() -> None:
    layer = nn.Linear(2, 3).init()
    with pytest.raises(AssignmentError, match="replace"):
        layer.bias = None
    with pytest.raises(AssignmentError):
        del layer.bias
    with pytest.raises(ArgumentError, match="weight, bias"):
        layer.replace(wieght=1)
    assert repr(layer) == "Linear(weight=float32[3, 2], bias=float32[3])"
    for wrong in (
        lambda: nn.Linear(0, 3),
        lambda: nn.Conv(3, 4, 3, groups=2),
        lambda: nn.Dropout(1.0),
        lambda: nn.Sequential(nn.relu, 3),
        lambda: nn.MultiHeadAttention(6, 4),
        lambda: nn.initializers.he_normal(fan="sideways"),
    ):
        with pytest.raises(ArgumentError):
            wrong()
    with pytest.raises(ShapeError, match=r"Linear\(2, 3\)"):
        layer(np.ones((1, 3)))


def test_classes_of_users_and_what_they_inherit() -> None:
    class Scaled(nn.Layer):
        inner: Any
        factor: float = 2.0

        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.factor

    class Shifted(Scaled):
        shift: float = 1.0

        def forward(self, x: Any) -> Any:
            return super().forward(x) + self.shift

    class Mine(nn.Linear):
        pass

    class Loose(nn.Layer):
        def __init__(self) -> None:
            self.first = Mine(2, 2)
            self.later = [nn.Linear(2, 2), {"x": nn.Linear(2, 1)}]

        def forward(self, x: Any) -> Any:
            return self.later[1]["x"](self.later[0](self.first(x)))

    x = data(3, 2)
    mine = Mine(2, 1).init(seed=2)
    close(Shifted(mine, shift=3.0)(x), np.asarray(mine(x)) * 2 + 3)
    loose = Loose().init()
    assert [w.shape for w in flatten(loose)[0]] == [(2, 2), (2,), (2, 2), (2,), (1, 2), (1,)]
    assert list(nn.named_weights(loose))[-1] == "later.1.x.bias"
    close(ost.compile(lambda m, v: m(v))(loose, x), loose(x))
    close(ost.vmap(loose)(x), loose(x))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_filters_are_those_of_any_layout(layout: str) -> None:
    last = layout == "NHWC"
    x = data(2, 4, 5, 6)
    for kind, more in ((nn.Conv, {}), (nn.ConvTranspose, {"output_padding": 1})):
        plain = kind(4, 6, (3, 2), stride=2, padding=1, groups=2, **more).init(seed=1)
        again = kind(4, 6, (3, 2), stride=2, padding=1, groups=2, layout=layout, **more)
        again = nn.load_weights(again, nn.named_weights(plain))
        y = again(np.moveaxis(x, 1, -1) if last else x)
        close(np.moveaxis(np.asarray(y), -1, 1) if last else y, plain(x))
    for axes in (1, 2, 3):
        conv = nn.Conv(2, 3, 3, axes=axes, padding="same", bias=False).init()
        assert conv(data(1, 2, *(5,) * axes)).shape == (1, 3, *(5,) * axes)


def test_heads_are_attention_of_parts() -> None:
    x, z = data(2, 5, 8), data(2, 3, 8)
    for kv in (4, 2, 1):
        layer = nn.MultiHeadAttention(8, 4, kv_heads=kv).init(seed=1)
        w = np.asarray(layer.in_proj_weight)
        for other, how in ((None, {"is_causal": True}), (z, {})):
            q, k, v = (
                np.einsum("nlf,of->nlo", of, part)
                for of, part in zip(
                    (x, *(x if other is None else other,) * 2),
                    np.split(w, [8, 8 + 2 * kv]),
                    strict=True,
                )
            )
            heads = []
            for h in range(4):
                own = slice(2 * (h * kv // 4), 2 * (h * kv // 4) + 2)
                heads.append(
                    nn.attention(q[..., 2 * h : 2 * h + 2], k[..., own], v[..., own], **how)
                )
            close(layer(x, other, **how), layer.out_proj(np.concatenate(heads, -1)), 1e-4)


def test_a_summary_counts_what_a_call_makes() -> None:
    found = nn.summary(network(), (2, 3, 6, 6))
    kinds = [(r.kind, r.parameters, r.multiply_adds) for r in found.rows if r.multiply_adds]
    assert kinds == [
        ("Conv", 112, 2 * 36 * 3 * 4 * 9),
        ("Conv", 148, 2 * 36 * 4 * 4 * 9),
        ("Conv", 10, 2 * 36 * 4 * 2),
        ("Linear", 1085, 2 * 216 * 5),
    ]
    assert (
        found.parameters == sum(r.parameters for r in found.rows) == 112 + 8 + 148 + 8 + 10 + 1085
    )
    assert found.statistics == 8
    assert found.parameter_bytes == 4 * found.parameters
    assert nn.summary(network().init(), ost.spec((2, 3, 6, 6)), train=True).rows == found.rows
    assert "layers[3].body.layers[0] (Conv)" in str(found)
    shared = nn.Linear(4, 4)
    assert nn.summary(nn.Sequential(shared, shared), (1, 4)).multiply_adds == 32
    with pytest.raises(ArgumentError, match="a shape"):
        nn.summary(network(), 3)


def test_a_model_is_saved_as_other_states_are(tmp_path: Path) -> None:
    model = network().init(seed=1)
    ost.save_state(tmp_path, {"model": model, "step": 3}, step=3)
    back = ost.load_state(tmp_path, like={"model": network().init(seed=2), "step": 0})
    x = data(1, 3, 6, 6)
    assert np.array_equal(np.asarray(model(x)), np.asarray(back["model"](x)))
    assert back["model"][2] is nn.relu


@pytest.mark.parametrize(
    "name", ["conv", "turned", "norm", "group", "layer", "heads", "table", "lstm", "gru"]
)
def test_weights_of_pytorch_do_the_same(name: str) -> None:
    """By its own names, and with its statistics."""
    torch = pytest.importorskip("torch")
    t = torch.nn
    x = data(3, 4, 6, 6)
    theirs, ours, given = {
        "conv": (
            t.Conv2d(4, 6, 3, 2, 1, groups=2),
            nn.Conv(4, 6, 3, stride=2, padding=1, groups=2),
            x,
        ),
        "turned": (
            t.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2),
            nn.ConvTranspose(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            x,
        ),
        "norm": (
            t.Sequential(t.BatchNorm2d(4), t.ReLU()),
            nn.Sequential(nn.BatchNorm(4), nn.relu),
            x,
        ),
        "group": (t.GroupNorm(2, 4), nn.GroupNorm(2, 4), x),
        "layer": (t.LayerNorm((6, 6)), nn.LayerNorm((6, 6)), x),
        "heads": (
            t.MultiheadAttention(8, 2, batch_first=True),
            nn.MultiHeadAttention(8, 2),
            data(2, 5, 8),
        ),
        "lstm": (
            t.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
            nn.LSTM(3, 4, layers=2, bidirectional=True),
            data(2, 5, 3),
        ),
        "gru": (t.GRU(3, 4, 2), nn.GRU(3, 4, layers=2, layout="TNC"), data(5, 2, 3)),
        "table": (t.Embedding(5, 3), nn.Embedding(5, 3), np.array([[1, 4], [0, 2]])),
    }[name]
    model = nn.load_weights(ours, theirs.state_dict())
    other = torch.from_numpy(given)
    others = [other] * (3 if name == "heads" else 1)

    def first(y: Any) -> Any:
        return y[0] if isinstance(y, tuple) else y

    for _ in range(2):
        close(first(model(given)), first(theirs.eval()(*others)).detach())
        y, model = model.apply(given)
        close(first(y), first(theirs.train()(*others)).detach())
        for key, value in nn.named_weights(model).items():
            close(value, theirs.state_dict()[key])


# -- weights in files ------------------------------------------------------------------------
def test_weights_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = network().init(seed=1)
    nn.save_weights(path, model, metadata={"made": "here"})
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert header["__metadata__"] == {"made": "here"}
    assert header["0.weight"]["shape"] == [4, 3, 3, 3]
    assert (8 + size) % 8 == 0
    again = nn.load_weights(network(), path)
    x = data(1, 3, 6, 6)
    assert np.array_equal(np.asarray(model(x)), np.asarray(again(x)))
    half = nn.load_weights(network().init(dtype="float64"), path)
    assert half[0].weight.dtype == np.float64
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "bfloat16", "float64", "complex64"):
        given = ost.asarray(RNG.integers(0, 2, (2, 0 if dtype == "int8" else 3))).astype(dtype)
        nn.save_weights(path, {"x": given, "y": {"z": given[0]}})
        back = nn.load_weights({"x": given, "y": {"z": given[0]}}, path)
        assert back["x"].dtype == given.dtype
        assert np.array_equal(np.asarray(back["y"]["z"]), np.asarray(given[0]))
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_do_not_fit_are_told() -> None:
    class Tensor:  # as PyTorch's, which asks for `detach`
        def __init__(self, x: Any) -> None:
            self.x = x

        def detach(self) -> Any:
            return self.x

    layer = nn.Linear(2, 1)
    state = {"fc.weight": Tensor(np.ones((1, 2), np.float32)), "fc.bias": np.zeros(1, np.float32)}
    with pytest.raises(
        ArgumentError, match=r"missing weight, bias; unexpected fc\.bias, fc\.weight"
    ):
        nn.load_weights(layer, state)
    found = nn.load_weights(layer, state, rename=lambda name: f"fc.{name}")
    assert float(found(np.ones((1, 2), np.float32))[0, 0]) == 2
    part = nn.load_weights(layer.init(), {"bias": [7.0], "more": [1]}, strict=False)
    assert float(part.bias[0]) == 7
    with pytest.raises(ShapeError, match="weight"):
        nn.load_weights(layer, {"weight": np.ones((2, 1)), "bias": [0.0]})
    norm = nn.load_weights(
        nn.BatchNorm(1),
        {
            **{n: [1.0] for n in ("weight", "bias", "running_mean", "running_var")},
            "num_batches_tracked": 3,
        },
    )
    assert float(norm.running_mean[0]) == 1


def test_a_file_of_weights_is_one_as_others_are(tmp_path: Path) -> None:
    """Readable by whom files are, by way of a link too; and where none can be, that is said."""
    model, plain = nn.Linear(2, 1).init(seed=0), tmp_path / "plain"
    plain.write_bytes(b"")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "w.safetensors")
    nn.save_weights(link, model)
    assert link.is_symlink()
    assert (tmp_path / "w.safetensors").stat().st_mode == plain.stat().st_mode
    with pytest.raises(DataFileError, match="a folder that exists and may be written to"):
        nn.save_weights(tmp_path / "none" / "w", model)
    with pytest.raises(
        DataFileError, match="No such file or directory; needed a whole safetensors"
    ):
        nn.load_weights(model, tmp_path / "none")
    assert {x.name for x in tmp_path.iterdir()} == {"plain", "link", "w.safetensors"}


def test_damaged_files_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nn.save_weights(path, nn.Linear(3, 2).init())
    good = path.read_bytes()
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}

    def file(header: Any, body: bytes = b"\0" * 4) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + body

    bad = [good[:n] for n in range(0, len(good), 5)]
    bad += [good + b"\0", b"\xff" * 8 + good[8:], file(b"[]"), file(b"[" * 4000), file(b"{}")]
    bad += [
        file({"weight": {**entry, **change}})
        for change in (
            {"dtype": "F33"},
            {"shape": [2]},
            {"shape": [-1]},
            {"shape": [1.0]},
            {"shape": 1},
            {"shape": [2**62, 2**62]},
            {"data_offsets": [4, 8]},
            {"data_offsets": [0]},
            {"data_offsets": [False, 4]},
        )
    ]
    bad += [file({"a": {**entry, "data_offsets": [4, 8]}}, bytes(8))]
    bad += [file({"a": entry, "b": entry}), file(b'{"a": 1, "a": 2}'), file({"a": None})]
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(DataFileError, match=r"safetensors") as caught:
            nn.load_weights(nn.Linear(3, 2), path, strict=False)
        assert str(caught.value).count("needed a whole") == 1
    for _ in range(200):
        content = bytearray(good)
        content[RNG.integers(len(good) - 32)] ^= 1 << RNG.integers(8)
        path.write_bytes(content)
        with contextlib.suppress(DataFileError, ArgumentError, ShapeError):
            nn.load_weights(nn.Linear(3, 2), path)
