"""Policies: some of a list of stages, at random, with random or given strength.

A policy draws which stages act on a sample, and then lets these act: it has no operations of its own. Each
entry of a list makes a stage from a strength between -1 and 1; those without a direction are given no
sign."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ostinato.ops.core.exact import Keys
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.sample_draws import Draws
from ..feed.stage import Shape, Stage, stage
from .colour import AutoContrast, Brightness, Contrast, Equalize, Posterize, Saturation, Solarize
from .filters import Sharpness
from .pixel_values import Image, check_number
from .warps import Affine, Filled

Make = Callable[..., Stage | None]  # from strength, and what moving stages are given; None: nothing


@dataclass(frozen=True)
class PolicyEntry:
    name: str
    has_sign: bool
    make: Make


def _sheared(most: float) -> tuple[PolicyEntry, PolicyEntry]:
    def angle(strength: float) -> float:
        return math.degrees(math.atan(most * strength))

    return (
        PolicyEntry("shear_x", True, lambda s, **how: Affine(shear=(angle(s), 0.0), **how)),
        PolicyEntry("shear_y", True, lambda s, **how: Affine(shear=(0.0, angle(s)), **how)),
    )


def _moved(most: float) -> tuple[PolicyEntry, PolicyEntry]:
    return (
        PolicyEntry("translate_x", True, lambda s, **how: Affine(translate=(most * s, 0.0), **how)),
        PolicyEntry("translate_y", True, lambda s, **how: Affine(translate=(0.0, most * s), **how)),
    )


def _factors(most: float) -> tuple[PolicyEntry, ...]:
    return (
        PolicyEntry("brightness", True, lambda s, **how: Brightness(1 + most * s)),
        PolicyEntry("saturation", True, lambda s, **how: Saturation(1 + most * s)),
        PolicyEntry("contrast", True, lambda s, **how: Contrast(1 + most * s)),
        PolicyEntry("sharpness", True, lambda s, **how: Sharpness(1 + most * s)),
    )


def _list(
    shear: float, move: float, degrees: float, factor: float, bits: int
) -> tuple[PolicyEntry, ...]:
    """The fourteen operations of both papers, as far as each of them goes."""
    return (
        PolicyEntry("identity", False, lambda s, **how: None),
        *_sheared(shear),
        *_moved(move),
        PolicyEntry("rotate", True, lambda s, **how: Affine(degrees * s, **how)),
        *_factors(factor),
        PolicyEntry("posterize", False, lambda s, **how: Posterize(8 - round(bits * s))),
        PolicyEntry("solarize", False, lambda s, **how: Solarize(1 - s)),
        PolicyEntry("autocontrast", False, lambda s, **how: AutoContrast()),
        PolicyEntry("equalize", False, lambda s, **how: Equalize()),
    )


RAND_AUGMENT = _list(0.3, 150 / 331, 30.0, 0.9, 4)
TRIVIAL_AUGMENT = _list(0.99, 32 / 224, 135.0, 0.99, 6)


@lru_cache(4096)
def made(entry: PolicyEntry, given: Keys) -> Stage | None:
    """Its stage, of a strength and of what the policy says of affine ones."""
    strength, how = given
    return entry.make(strength, **dict(how))


@dataclass(frozen=True)
class AugmentPolicy(Filled):
    """What policies have in common. The fields are those of `affine`, which some of the stages are."""

    def chosen(
        self, entries: tuple[PolicyEntry, ...], rng: Draws, strength: float | None
    ) -> Stage | None:
        """One of a list; None for a strength of steps of its own, out of those that `steps` says."""
        a, b, c = rng.random(3).tolist()
        entry = entries[int(a * len(entries))]
        if strength is None:
            strength = int(c * self.steps()) / (self.steps() - 1)
        how = (
            ("interpolation", self.interpolation),
            ("fill", self.fill),
            ("mask_fill", self.mask_fill),
            ("least", self.least),
        )
        strength = -strength if entry.has_sign and b < 0.5 else strength
        return made(entry, Keys((strength, how)))

    def steps(self) -> int:
        raise NotImplementedError

    def image(self, xp: Any, x: Image, drawn: tuple[Stage, ...]) -> Image:
        for one in drawn:
            x = one.image(xp, x, None)  # type: ignore[attr-defined]
        return x

    def mask(self, xp: Any, x: Image, drawn: tuple[Stage, ...]) -> Image:
        for one in drawn:
            if one.moves:
                x = one.mask(xp, x, None)  # type: ignore[attr-defined]
        return x

    def boxes(self, xp: Any, x: Any, drawn: tuple[Stage, ...], shape: Shape) -> Any:
        for one in drawn:
            if one.moves:
                x = one.boxes(xp, x, None, shape)  # type: ignore[attr-defined]
        return x


def _check_steps(who: str, name: str, given: Any, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        needed = f"a whole number, {least} or more"
        raise misfit(ArgumentError, who, got=f"{name}={given!r}", needed=needed)


@stage("rand_augment")
@dataclass(frozen=True)
class RandAugment(AugmentPolicy):
    """n of fourteen operations, one after another (Cubuk et al., 2020). magnitude: how strong they are, from
    0 to bins - 1."""

    n: int = 2
    magnitude: int = 9
    bins: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps(self.name, "n", self.n, 0)
        _check_steps(self.name, "bins", self.bins, 2)
        check_number(self.name, "magnitude", self.magnitude, 0, self.bins - 1)

    def steps(self) -> int:
        return self.bins

    def draw(self, rng: Draws, shape: Shape) -> tuple[Stage, ...]:
        strength = self.magnitude / (self.bins - 1)
        found = [self.chosen(RAND_AUGMENT, rng, strength) for _ in range(self.n)]
        return tuple(one for one in found if one is not None)


@stage("trivial_augment")
@dataclass(frozen=True)
class TrivialAugment(AugmentPolicy):
    """One of fourteen operations, as strong as it comes (Mueller and Hutter, 2021; the wide list)."""

    bins: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps(self.name, "bins", self.bins, 2)

    def steps(self) -> int:
        return self.bins

    def draw(self, rng: Draws, shape: Shape) -> tuple[Stage, ...]:
        one = self.chosen(TRIVIAL_AUGMENT, rng, None)
        return () if one is None else (one,)
