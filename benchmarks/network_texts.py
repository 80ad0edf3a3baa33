"""Networks, each written once in words that every library has (`network_systems.py`), so that all begin
with the same weights and their losses can be compared. Without dropout, whose draws differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .workload import Numbers, scaled


class Words:
    """What a library calls them is in its class. Weights, and running statistics of norms, come one after
    the other, as the text asks for them."""

    def __init__(self, weights: Iterable[Any], running: Iterable[Any], training: bool) -> None:
        self.weights, self.running, self.training = iter(weights), iter(running), training
        self.updated: list[Any] = []  # running statistics, where they are made anew

    def take(self, _: Callable[[], tuple[int, ...]], fan: int = 1) -> Any:
        """The next weight, of this shape."""
        return next(self.weights)

    def channels(self, x: Any) -> int:
        return int(x.shape[1])

    def conv(
        self,
        x: Any,
        made: int,
        window: int | tuple[int, ...],
        stride: int = 1,
        pad: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        axes: int = 2,
    ) -> Any:
        sizes = (window,) * axes if isinstance(window, int) else window
        pads = (pad,) * axes if isinstance(pad, int) else pad
        w = self.take(lambda: (made, self.channels(x) // groups, *sizes), -1)
        b = self.take(lambda: (made,), 0) if bias else None
        return self.convolved(x, w, b, (stride,) * axes, pads, groups)

    def up(self, x: Any, made: int) -> Any:
        """Twice as wide along three axes, by a transposed convolution."""
        w = self.take(lambda: (self.channels(x), made, 2, 2, 2), self.channels(x))
        return self.spread(x, w, self.take(lambda: (made,), 0))

    def dense(self, x: Any, made: int) -> Any:
        w = self.take(lambda: (made, x.shape[-1]), -1)
        return self.product(x, w, self.take(lambda: (made,), 0))

    def norm(self, x: Any, eps: float = 1e-5) -> Any:
        """A batch norm."""
        given = [self.take(lambda: (self.channels(x),), fan) for fan in (1, 0)]
        return self.normed(x, *given, next(self.running), next(self.running), eps)

    def layer_norm(self, x: Any) -> Any:
        return self.layer_normed(x, *[self.take(lambda: (x.shape[-1],), fan) for fan in (1, 0)])

    def table(self, rows: int, features: int) -> Any:
        return self.take(lambda: (rows, features), 2 * features)

    def __getattr__(self, name: str) -> Any:  # for type checkers: words of libraries
        raise AttributeError(name)


class Arrays(Words):
    """Words of libraries whose arrays have operators."""

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def scale(self, x: Any, by: float) -> Any:
        return x * by

    def first_rows(self, table: Any, count: int) -> Any:
        return table[:count]


class Shapes(Words):
    """Makes weights, and counts operations; arrays have a shape and nothing else."""

    def __init__(self, draws: bool) -> None:
        super().__init__((), (), True)
        self.draws = draws
        self.rng, self.made = np.random.default_rng(5), list[Numbers]()
        self.statistics, self.flops = list[Numbers](), list[float]()

    def take(self, shape: Callable[[], tuple[int, ...]], fan: int = 1) -> Numbers:
        """Drawn as He does; -1: over all axes but the first, 0: zeros, 1: ones."""
        sizes = shape()
        fan = math.prod(sizes[1:]) if fan < 0 else fan
        deviation = np.float32((2 / max(fan, 1)) ** 0.5)
        if not self.draws:
            return self.like(*sizes)
        if fan < 2:
            self.made.append(np.full(sizes, fan, np.float32))
        else:
            self.made.append(self.rng.standard_normal(sizes, np.float32) * deviation)
        return self.made[-1]

    def like(self, *shape: int) -> Numbers:
        return np.broadcast_to(np.float32(0), shape)

    def count(self, result: Numbers, each: int) -> Numbers:
        self.flops.append(2.0 * result.size * each)
        return result

    def convolved(self, x: Any, w: Any, b: Any, stride: Any, pads: Any, groups: int) -> Any:
        given = zip(x.shape[2:], w.shape[2:], pads, stride, strict=True)
        space = [(n + 2 * p - r) // s + 1 for n, r, p, s in given]
        return self.count(self.like(len(x), len(w), *space), math.prod(w.shape[1:]))

    def spread(self, x: Any, w: Any, b: Any) -> Any:
        return self.count(self.like(len(x), w.shape[1], *(2 * n for n in x.shape[2:])), x.shape[1])

    def product(self, x: Any, w: Any, b: Any) -> Any:
        return self.count(self.like(*x.shape[:-1], len(w)), w.shape[1])

    def scores(self, x: Any, w: Any) -> Any:
        return self.product(x, w, None)

    def normed(self, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
        return x

    def norm(self, x: Any, eps: float = 1e-5) -> Any:
        self.running = iter((None, None))
        self.statistics += [np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)]
        return super().norm(x, eps)

    def pool(self, x: Any, window: int, stride: int = 0, pad: int = 0, ceil: bool = False) -> Any:
        step = stride or window
        space = [pooled(n, window, step, pad, ceil) for n in x.shape[2:]]
        return self.like(*x.shape[:2], *space)

    avg_pool = max_pool = pool

    def mean(self, x: Any) -> Any:
        return self.like(*x.shape[:2])

    def flat(self, x: Any) -> Any:
        return self.like(len(x), math.prod(x.shape[1:]))

    def concat(self, xs: Sequence[Any]) -> Any:
        return self.like(len(xs[0]), sum(x.shape[1] for x in xs), *xs[0].shape[2:])

    def rows_of(self, table: Any, ids: Any) -> Any:
        return self.like(*ids.shape, table.shape[1])

    def first_rows(self, table: Any, count: int) -> Any:
        return self.like(count, table.shape[1])

    def attend(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        self.count(q, 2 * q.shape[1])
        return q

    def add(self, x: Any, y: Any) -> Any:
        return x

    def same(self, x: Any, *_: Any) -> Any:
        return x

    relu = lrn = leaky = tanh = gelu = log1p = scale = layer_normed = same


def pooled(n: int, window: int, stride: int, pad: int, ceil: bool) -> int:
    """How many windows there are, of which the last may reach out."""
    return (n + 2 * pad - window + (stride - 1) * ceil) // stride + 1


class Network(NamedTuple):
    name: str
    about: str
    text: Callable[[Any, Any], Any]
    loss: Callable[[Any, Any, Any], Any]
    shape: tuple[int, ...]  # of what is given, of which there are fewer at a reduced size
    targets: Callable[[Any, Numbers], Numbers]
    rate: float
    letters: int = 0

    @property
    def given(self) -> tuple[int, ...]:
        return scaled(self.shape[0], 1), *self.shape[1:]

    def flops(self, train: bool) -> float:
        """Slopes of what comes first are not asked for."""
        counted = Shapes(False)
        counted.training = train
        self.text(counted, counted.like(*self.given))
        found = counted.flops
        return 3 * sum(found) - found[0] if train else sum(found)


class Made:
    """A network's weights, running statistics, and data; as some `trial` has them: 0 in float64, others each
    moved by a unit in the last place, up or down."""

    def __init__(self, network: Network, trial: int = -1) -> None:
        rng, found = np.random.default_rng(3), Shapes(True)
        if network.letters:
            self.x: Numbers = rng.integers(0, network.letters, network.given)
        else:
            self.x = rng.standard_normal(network.given, np.float32)
        self.y = network.targets(rng, self.x)
        network.text(found, self.x)
        self.weights, self.running = found.made, found.statistics
        if trial >= 0:
            up = np.random.default_rng(trial)
            self.x, self.weights = (
                moved(self.x, trial, up),
                [moved(w, trial, up) for w in found.made],
            )
            self.running = [v.astype(self.weights[0].dtype) for v in found.statistics]


def moved(x: Numbers, trial: int, up: Any) -> Numbers:
    if x.dtype != np.float32 or not trial:
        return x if x.dtype != np.float32 else x.astype(np.float64)
    return np.nextafter(x, np.where(up.integers(0, 2, x.shape), np.inf, -np.inf).astype(x.dtype))


# -- texts ---------------------------------------------------------------------------------
def wide(n: int) -> int:
    """Channels, fewer at a reduced size."""
    return -(-scaled(n, 1) // 8) * 8


def alexnet(f: Any, x: Any) -> Any:
    """Caffe's: two groups, and norms of what is around."""
    x = f.max_pool(f.lrn(f.relu(f.conv(x, wide(96), 11, 4))), 3, 2)
    x = f.max_pool(f.lrn(f.relu(f.conv(x, wide(256), 5, 1, 2, groups=2))), 3, 2)
    x = f.relu(f.conv(x, wide(384), 3, 1, 1))
    x = f.relu(f.conv(x, wide(384), 3, 1, 1, groups=2))
    x = f.max_pool(f.relu(f.conv(x, wide(256), 3, 1, 1, groups=2)), 3, 2)
    x = f.relu(f.dense(f.flat(x), wide(4096)))
    return f.dense(f.relu(f.dense(x, wide(4096))), 1000)


MIXED = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def googlenet(f: Any, x: Any) -> Any:
    """Caffe's, with its two heads."""

    def conv(x: Any, made: int, window: int, stride: int = 1) -> Any:
        return f.relu(f.conv(x, wide(made), window, stride, window // 2))

    x = f.lrn(f.max_pool(conv(x, 64, 7, 2), 3, 2, 0, True))
    x = f.max_pool(f.lrn(conv(conv(x, 64, 1), 192, 3)), 3, 2, 0, True)
    seen = []
    for k, (a, b, c, d, e, p) in enumerate(MIXED):
        fives, pools = conv(conv(x, d, 1), e, 5), conv(f.max_pool(x, 3, 1, 1), p, 1)
        x = f.concat([conv(x, a, 1), conv(conv(x, b, 1), c, 3), fives, pools])
        seen += [x] * (k in (2, 5))
        x = f.max_pool(x, 3, 2, 0, True) if k in (1, 6) else x
    made = f.dense(f.mean(x), 1000)
    if not f.training:
        return made
    ends = [f.flat(conv(f.avg_pool(s, 5, 3), 128, 1)) for s in seen]
    return [made, *(f.dense(f.relu(f.dense(s, wide(1024))), 1000) for s in ends)]


def resnet50(f: Any, x: Any) -> Any:
    """v1.5: the stride is in the convolutions of 3 x 3."""

    def conv(x: Any, made: int, window: int, stride: int = 1) -> Any:
        return f.norm(f.conv(x, made, window, stride, window // 2, bias=False))

    x = f.max_pool(f.relu(conv(x, wide(64), 7, 2)), 3, 2, 1)
    for k, count in enumerate((3, 4, 6, 3)):
        for j in range(count):
            n, stride = wide(64) << k, 2 if k and not j else 1
            y = f.relu(conv(f.relu(conv(x, n, 1)), n, 3, stride))
            x = f.relu(f.add(conv(y, 4 * n, 1), x if j else conv(x, 4 * n, 1, stride)))
    return f.dense(f.mean(x), 1000)


def inception(f: Any, x: Any) -> Any:
    """v3, with its head."""

    def conv(x: Any, made: int, window: Any, stride: int = 1, pad: Any = None) -> Any:
        sizes = (window,) * 2 if isinstance(window, int) else window
        pads = tuple(r // 2 for r in sizes) if pad is None else (pad,) * 2
        return f.relu(f.norm(f.conv(x, wide(made), sizes, stride, pads, bias=False), 1e-3))

    def row(x: Any, *steps: tuple[int, Any]) -> Any:
        for made, window in steps:
            x = conv(x, made, window)
        return x

    def near(x: Any, made: int) -> Any:
        return conv(f.avg_pool(x, 3, 1, 1), made, 1)

    x = conv(conv(conv(x, 32, 3, 2, 0), 32, 3, 1, 0), 64, 3)
    x = f.max_pool(conv(conv(f.max_pool(x, 3, 2), 80, 1), 192, 3, 1, 0), 3, 2)
    for p in (32, 64, 64):
        threes = row(x, (64, 1), (96, 3), (96, 3))
        x = f.concat([conv(x, 64, 1), row(x, (48, 1), (64, 5)), threes, near(x, p)])
    small = conv(row(x, (64, 1), (96, 3)), 96, 3, 2, 0)
    x = f.concat([conv(x, 384, 3, 2, 0), small, f.max_pool(x, 3, 2)])
    flat, tall = (1, 7), (7, 1)
    for c in (128, 160, 160, 192):
        once = row(x, (c, 1), (c, flat), (192, tall))
        twice = row(x, (c, 1), (c, tall), (c, flat), (c, tall), (192, flat))
        x = f.concat([conv(x, 192, 1), once, twice, near(x, 192)])
    middle = x
    ends = [conv(row(x, (192, 1)), 320, 3, 2, 0)]
    ends += [conv(row(x, (192, 1), (192, flat), (192, tall)), 192, 3, 2, 0)]
    x = f.concat([*ends, f.max_pool(x, 3, 2)])
    for _ in range(2):
        a, b = conv(x, 384, 1), row(x, (448, 1), (384, 3))
        pairs = [conv(v, 384, window) for v in (a, b) for window in ((1, 3), (3, 1))]
        x = f.concat([conv(x, 320, 1), *pairs, near(x, 192)])
    made = f.dense(f.mean(x), 1000)
    if not f.training:
        return made
    head = conv(conv(f.avg_pool(middle, 5, 3), 128, 1), 768, 5, 1, 0)
    return [made, f.dense(f.flat(head), 1000)]


def cosmoflow(f: Any, x: Any) -> Any:
    """For a cube of 64^3: four halvings."""
    x = f.log1p(f.relu(x))
    for k in range(4):
        x = f.max_pool(f.leaky(f.conv(x, wide(32 << k), 3, 1, 1, axes=3)), 2)
    x = f.leaky(f.dense(f.leaky(f.dense(f.flat(x), 128)), 64))
    return f.scale(f.tanh(f.dense(x, 4)), 1.2)


def unet(f: Any, x: Any, width: int = 0, below: int = 3) -> Any:
    """Three levels, as 3-D U-Net's paper has them."""
    width = width or wide(32)

    def convs(x: Any, *widths: int) -> Any:
        for n in widths:
            x = f.relu(f.norm(f.conv(x, n, 3, 1, 1, bias=False, axes=3)))
        return x

    if not below:
        return convs(x, width, 2 * width)
    near = convs(x, width, 2 * width)
    far = f.up(unet(f, f.max_pool(near, 2), 2 * width, below - 1), 4 * width)
    made = convs(f.concat([far, near]), 2 * width, 2 * width)
    return f.conv(made, 3, 1, axes=3) if below == 3 else made


def mlp(f: Any, x: Any) -> Any:
    for _ in range(4):
        x = f.relu(f.dense(x, wide(528)))
    return f.dense(x, 10)


def transformer(f: Any, ids: Any) -> Any:
    """GPT's form, with one table that reads and writes."""
    features, length, heads = wide(384), int(ids.shape[1]), 6
    letters, places = f.table(256, features), f.table(length, features)
    x = f.add(f.rows_of(letters, ids), f.first_rows(places, length))
    for _ in range(6):
        y = f.layer_norm(x)
        made = f.attend(*[f.dense(y, features) for _ in range(3)], heads)
        x = f.add(x, f.dense(made, features))
        y = f.gelu(f.dense(f.layer_norm(x), 4 * features))
        x = f.add(x, f.dense(y, features))
    return f.scores(f.layer_norm(x), letters)


# -- data and losses -----------------------------------------------------------------------
def of_scores(f: Any, scores: Any, y: Any) -> Any:
    if not isinstance(scores, list):
        return f.cross_entropy(scores, y)
    main, *heads = [f.cross_entropy(s, y) for s in scores]
    return main + 0.3 * sum(heads)


def of_letters(f: Any, scores: Any, y: Any) -> Any:
    return f.cross_entropy(scores.reshape((-1, 256)), y)


def of_numbers(f: Any, made: Any, y: Any) -> Any:
    return ((made - y) ** 2).mean()


def kinds(rng: Any, x: Numbers) -> Numbers:
    return np.asarray(rng.integers(0, 10, len(x)))


def numbers(rng: Any, x: Numbers) -> Numbers:
    return np.asarray(rng.uniform(-1, 1, (len(x), 4)).astype(np.float32))


def shades(_: Any, x: Numbers) -> Numbers:
    return np.asarray(np.digitize(x[:, 0], [-0.5, 0.5]))


def next_letters(_: Any, x: Numbers) -> Numbers:
    return np.roll(x, -1, 1).reshape(-1)


def _images(name: str, about: str, text: Any, *shape: int) -> Network:
    return Network(name, about, text, of_scores, shape, kinds, 1e-3)


NETWORKS = (
    _images("alexnet", "AlexNet, 64 images", alexnet, 64, 3, 227, 227),
    _images("googlenet", "GoogLeNet, 16 images", googlenet, 16, 3, 224, 224),
    _images("resnet50", "ResNet-50, 8 images", resnet50, 8, 3, 224, 224),
    _images("inception", "Inception v3, 8 images", inception, 8, 3, 299, 299),
    Network(
        "cosmoflow", "CosmoFlow, 4 cubes of 64^3", cosmoflow, of_numbers,
        (4, 4, 64, 64, 64), numbers, 1e-3,
    ),
    Network(
        "unet", "3-D U-Net, a volume of 64^3", unet, of_scores, (1, 1, 64, 64, 64), shades, 1e-2
    ),
    _images("mlp", "784 - 4 x 528 - 10, 128 samples", mlp, 128, 784),
    Network(
        "transformer", "6 blocks of 384 features, 8 texts of 256", transformer, of_letters,
        (8, 256), next_letters, 1e-2, 256,
    ),
)  # fmt: skip
