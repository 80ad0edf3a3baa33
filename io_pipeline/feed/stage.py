"""What a pipe does to samples: one block per operation.

    @stage("random_flip")
    @dataclass(frozen=True)
    class RandomFlip(Stage):
        '''Mirrors left and right, with a chance of `p`.'''

        p: float = 0.5
        moves = True

        def draw(self, rng, shape):
            return rng.chance(self.p)

        def image(self, xp, x, drawn):
            return x[:, ::-1] if drawn else x

        mask = image

        def boxes(self, xp, x, drawn, shape): ...

and `pipe.random_flip(0.3)` is there. Its fields are its parameters, plain data: they are compared, hashed
and written down as the pipe's identity. Methods that are called like a kind of field (fields.py) say what
it does to these; what it has no method for stays as it is. `draw` gives the numbers of one sample, of
whatever form; all methods are given them, so image, mask and boxes of a sample move together.

Arrays come from `xp`: methods written with `xp` alone run on a device, too. Those that use the host's
libraries say so (`places`). `image_rows` does the same to all images of a batch at once, given `as_rows` of
what was drawn, as part of a plan of who takes the batch (later.py). A method may return a view, must not
write to what it was given unless it is its own, and may fill `out`, where it takes that: the sample's place
in its batch."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from .content import code_of
from .fields import BOXES, IMAGE, MASK, Fields
from .native import Form, Native
from .plain import Undescribed, as_plain, from_plain
from .sample_draws import Draws

Shape = tuple[int, ...]
Box3 = tuple[tuple[int, int], ...]  # ranges of depth, height and width
Window = tuple[int, int, int, int]  # of an image: top, left, height, width
HOST, DEVICE = "host", "device"


class Stage:
    """One operation on samples, or on batches of them. Frozen dataclasses derive from it.

    >>> from dataclasses import dataclass
    >>> @ost.io.stage("brighter")
    ... @dataclass(frozen=True)
    ... class Brighter(ost.io.Stage):
    ...     by: int = 10
    ...     def image(self, xp, x, drawn):
    ...         return x + xp.uint8(self.by)
    >>> black = np.zeros((2, 4, 4, 3), "uint8")
    >>> [int(x.max()) for x in ost.io.arrays(black, kinds=["image"]).brighter(by=3).batch(2)]
    [3]
    """

    name: ClassVar[str] = ""  # what its method of pipes is called; `stage` sets it
    needs: ClassVar[tuple[str, ...]] = (IMAGE,)  # kinds, of which a sample must have one
    moves: ClassVar[bool] = False  # elements change places, so masks and boxes have to follow
    batched: ClassVar[bool] = False  # it works on whole batches: arrays have one more axis in front
    places: ClassVar[tuple[str, ...]] = (HOST,)  # where its methods can run
    exact: ClassVar[bool] = False  # it gives the same bits at all of its places
    timed: ClassVar[bool] = False  # it may take long, and then is a fault by on_error(timeout=...)

    def draw(self, rng: Draws, shape: Shape) -> Any:
        """The random numbers of one sample, whose image (or volume, or mask) has this shape. A stage
        of batches is given a list of them, one for each sample."""
        raise NotImplementedError

    def window(self, drawn: Any, shape: Shape) -> tuple[Window, Any] | None:
        """The only part of an image that it looks at, and what was drawn as seen from there; so that
        a decoder in front of it may leave the rest out. None: it looks at all of it."""
        return None

    def shrinks(self, drawn: Any, shape: Shape) -> tuple[Window, tuple[int, int]] | None:
        """The part of an image that it brings to a height and width, if it does the same with an image of
        another scale, of which it is given a window. None: it does no such thing."""
        return None

    def shrunk(self, x: Any, window: Window, size: tuple[int, int]) -> Any:
        """Decode about what a window has, for a stage that decodes, in a smaller scale, but no
        smaller than this; None if it is to be decoded as it is."""
        return None

    def extents(self, x: Any) -> Shape | None:
        """Return, for a stage that decodes, the shape of the image in a file, if `part` may decode
        some of it."""
        return None

    def part(self, x: Any, shape: Shape, window: Window) -> Any:
        """Decode what the image in a file, of this shape, has in a window, to the bit; None if all
        has to be decoded."""
        return None

    def native(self, form: Form | None) -> Native | None:
        """Its part in the machine code of a chain, for images of such a form, with the bits of `image`; None if
        it cannot. No form: what is in files."""
        return None

    def why_whole(self) -> str:
        """Why a part of what it makes of a volume needs all of the volume; nothing, if it does not."""
        return "it looks at whole samples"

    def result(self, drawn: Any, shape: Shape) -> Shape:
        """Depth, height and width of what it makes of a volume, and channels."""
        return shape

    def slab(self, drawn: Any, shape: Shape, box: Box3) -> tuple[Box3, Any]:
        """Find of which part of a volume of this shape a part of the result is made, and what was
        drawn as seen from there."""
        return box, drawn

    def together(self, fields: Fields, values: list[Any]) -> None:
        """Change what fields that belong together have, of a sample of which each was dealt with."""

    @property
    def is_random(self) -> bool:
        return type(self).draw is not Stage.draw

    def method(self, kind: str) -> Callable[..., Any] | None:
        """Return the method for fields of a kind."""
        return getattr(self, kind, None)

    def rows(self, kind: str) -> Callable[..., Any] | None:
        """Return the method for fields of a kind of whole batches, in expressions of arrays of any
        library."""
        return getattr(self, f"{kind}_rows", None)

    def as_rows(self, drawn: list[Any]) -> Any:
        """Stack what was drawn for the samples of a batch as one array, for `rows`."""
        return drawn

    def check(self, sample: Fields) -> None:
        """Refuse samples that it cannot work on."""
        if self.needs and not sample.select_kind(*self.needs):
            got = f"samples of {_listed(sample.kinds)}"
            do = "say what the fields of a sample are with kinds="
            raise misfit(ArgumentError, self.name, got=got, needed=" or ".join(self.needs), do=do)
        for kind in (MASK, BOXES) if self.moves else ():
            if sample.select_kind(kind) and self.method(kind) is None:
                needed = f"a stage that moves {kind} as it moves the image"
                raise misfit(ArgumentError, self.name, got=f"a sample with {kind}", needed=needed)

    def identity(self) -> str:
        """Identify the stage, in words that are the same in every process."""
        given = [f"{f.name}={describe_value(getattr(self, f.name))}" for f in fields(self)]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(given)})"


def describe_value(value: Any) -> str:
    """A parameter in words; of a function its name and what it does."""
    code = getattr(value, "__code__", None)
    inner = getattr(value, "__dict__", {}).get("__wrapped__") if code is None else None
    if callable(inner):  # what only runs it elsewhere, or keeps its results
        return describe_value(inner)
    if isinstance(value, functools.partial):
        return f"{describe_value(value.func)} of {value.args!r} {value.keywords!r}"
    if code is None:
        return (
            f"{type(value).__module__}.{type(value).__qualname__}"
            if callable(value)
            else repr(value)
        )
    done = hashlib.blake2b(code_of(code).encode("utf-8", "surrogateescape"), digest_size=8)
    return f"{value.__module__}.{value.__qualname__}:{done.hexdigest()}"


def _listed(kinds: tuple[str, ...]) -> str:
    return ", ".join(kinds) or "nothing"


def stage_as_data(one: Stage) -> Any:
    """A stage as plain data: its name and its parameters."""
    if isinstance(one, (Map, Filter)):
        raise Undescribed(
            f"{one.name}({getattr(one.function, '__name__', 'function')}) is a function, which stays in the "
            "program: make it a stage (ost.io.stage), before ost.connect() under mpiexec"
        )
    known = STAGES.get(one.name)
    if known is not type(one):
        raise Undescribed(f"{type(one).__name__} is no stage that ost.io.stage has named")
    return [one.name, {f.name: as_plain(getattr(one, f.name)) for f in fields(one) if f.init}]  # type: ignore[arg-type]


def made_stage(said: Any) -> Stage:
    name, given = said
    if name not in STAGES:
        raise Undescribed(
            f"{name} is a stage that workers do not know: define it before ost.connect() under "
            "mpiexec, or in a module that Dask's workers preload"
        )
    return STAGES[name](**{k: from_plain(v) for k, v in given.items()})


@dataclass(frozen=True)
class Map(Stage):
    """A function of the user's: of whole samples, or of the fields of one kind. It may give another
    tree than it was given; `kinds` says what its leaves are. Behind `batch` it is given batches."""

    name = "map"
    needs = ()

    function: Callable[..., Any]
    on: str | None = None
    kinds: tuple[str, ...] | None = None
    random: bool = False

    @property
    def is_random(self) -> bool:
        return self.random

    def check(self, sample: Fields) -> None:
        if self.on is not None and not sample.select_kind(self.on):
            got = f"samples of {_listed(sample.kinds)}"
            raise misfit(ArgumentError, "map", got=got, needed=self.on)


class Rejected(Exception):
    """A filter leaves a sample out."""


@dataclass(frozen=True)
class Filter(Stage):
    """Leaves out samples of which a function of the user's says no."""

    name = "filter"
    needs = ()

    function: Callable[..., Any]
    on: str | None = None

    def check(self, sample: Fields) -> None:
        if self.on is not None and len(sample.select_kind(self.on)) != 1:
            got = f"samples of {_listed(sample.kinds)}"
            raise misfit(ArgumentError, "filter", got=got, needed=f"one {self.on} in each")


# -- the registry ------------------------------------------------------------------------------
STAGES: dict[str, type[Stage]] = {}
S = TypeVar("S", bound=type[Stage])


def stage(name: str) -> Callable[[S], S]:
    """Makes a class of stages a method of pipes.

    >>> from dataclasses import dataclass
    >>> @ost.io.stage("negative")
    ... @dataclass(frozen=True)
    ... class Negative(ost.io.Stage):
    ...     def image(self, xp, x, drawn):
    ...         return 255 - x
    >>> black = np.zeros((2, 4, 4, 3), "uint8")
    >>> [int(x.max()) for x in ost.io.arrays(black, kinds=["image"]).negative().batch(2)]
    [255]
    """

    def register(kind: S) -> S:
        kind.name = name
        STAGES[name] = kind
        return kind

    return register


def takes_out(method: Callable[..., Any]) -> bool:
    """Whether it can fill a sample's place in its batch."""
    return "out" in inspect.signature(method).parameters
