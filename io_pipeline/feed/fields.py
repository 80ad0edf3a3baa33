"""What a sample consists of: leaves of the tree that users see (a tuple, a dict, one value), each with a kind,
by which stages know what to do with it.

| kind | a value |
|---|---|
| image | height x width x channels; before it is decoded, the bytes of a file |
| mask | height x width, numbers of classes: never mixed, and moved as the image is |
| boxes | n x 4: x0, y0, x1, y1 in pixels of the image, float32 |
| label | a number of a class, or a row of weights of classes |
| volume | depth x height x width, or with channels behind |
| data | anything else: stages leave it alone |

Tensors and pictures of other libraries become NumPy's arrays in front of the first stage that is no function
of the user's, or in the batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.dlpack import as_numpy
from ostinato.ops.core.tree import Structure, constructor, flatten, paths

from .plain import made_structure, plain_structure

IMAGE, MASK, BOXES, LABEL, VOLUME, DATA = KINDS = (
    "image", "mask", "boxes", "label", "volume", "data"
)  # fmt: skip
SIZED = (IMAGE, VOLUME, MASK)  # whose extents are the sample's, the first of them that there is
OURS = {np.ndarray, bytes, str, int, float, bool, complex}  # leaves that are as stages take them
COLOURS = {"P": "RGB", "1": "L", "LA": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}


@dataclass(frozen=True)
class Fields:
    """The leaves of a sample, in the order of `flatten`."""

    kinds: tuple[str, ...]
    structure: Structure

    @property
    def names(self) -> list[str]:
        """Name the leaves as users do: `[0]`, `['image']`."""
        return paths(self.structure)

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Build the tree that users see of leaves."""
        return constructor(self.structure)(leaves)

    def as_data(self) -> Any:
        """Encode the fields for another process."""
        return [list(self.kinds), plain_structure(self.structure)]

    @classmethod
    def from_data(cls, said: Any) -> Fields:
        kinds, structure = said
        return cls(tuple(map(str, kinds)), made_structure(structure))

    def select_kind(self, *kinds: str) -> list[int]:
        return [k for k, kind in enumerate(self.kinds) if kind in kinds]

    def sized(self) -> int | None:
        """The leaf whose extents are the sample's."""
        return next((k for kind in SIZED for k in self.select_kind(kind)), None)


def fields_of(sample: Any, kinds: Sequence[str] | None = None) -> tuple[Fields, list[Any]]:
    """The fields of a sample of which nobody said what they are: kinds by the keys of a dict, else as
    given; pictures of Pillow's are images."""
    leaves, structure = flatten(sample)
    if kinds is None:
        kinds = [kind_of_name(path) for path in paths(structure)]
        for k, leaf in enumerate(leaves):
            if kinds[k] == DATA and type(leaf) not in OURS and _is_picture(leaf):
                kinds[k] = IMAGE
    return Fields(tuple(kinds), structure), leaves


def hosted(values: list[Any], kinds: Sequence[str]) -> list[Any]:
    """Leaves with other libraries' tensors and pictures as NumPy's arrays."""
    if all(type(x) in OURS for x in values):
        return values
    return [_hosted(x, kind) for x, kind in zip(values, kinds, strict=False)]


def _hosted(x: Any, kind: str) -> Any:
    if type(x) in OURS or isinstance(x, (np.ndarray, np.generic)):
        return x
    if _is_picture(x):
        return _pixels(x, kind)
    if not (hasattr(x, "__array__") or hasattr(x, "__dlpack__")):
        return x
    found = as_numpy(x)
    return x if found.dtype.hasobject else found


def _is_picture(x: Any) -> bool:
    """Whether it is Pillow's, which is not imported for this."""
    library = sys.modules.get("PIL.Image")
    return library is not None and isinstance(x, library.Image)


def _pixels(picture: Any, kind: str) -> np.ndarray[Any, Any]:
    """A picture's values: height x width x channels, but of a mask its numbers."""
    if kind != MASK and (mode := COLOURS.get(picture.mode)) is not None:
        has_alpha = picture.mode == "P" and "transparency" in picture.info
        picture = picture.convert("RGBA" if has_alpha else mode)
    found = np.asarray(picture)
    return found[..., None] if kind == IMAGE and found.ndim == 2 else found


def kind_of_name(path: str) -> str:
    """The kind of what users call so."""
    for kind in KINDS:
        if path.endswith((f"[{kind!r}]", f".{kind}")):
            return kind
    return DATA
