"""Values as plain data, which goes to another process as text, and back: numbers, words, tuples, lists,
dicts, arrays that are not large. What is anything else is said in a sentence, never pickled."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from ostinato.ops.core.encode import Malformed, need
from ostinato.ops.core.spec import DTYPES
from ostinato.ops.core.tree import LEAF, Structure, flatten

MOST_BYTES = 1 << 20  # of an array of samples that is told of: what is larger stays where it is
LARGEST = 1 << 28  # bytes of numbers of samples, such as those that `select` took


class Undescribed(Exception):
    """What cannot be told as plain data, and what to do."""


def as_plain(value: Any, most: int = LARGEST) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return as_plain(np.asarray(value), most)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        kind = "l" if isinstance(value, list) else "t"
        return {kind: [as_plain(v, most) for v in value]}
    if isinstance(value, frozenset):
        return {"s": sorted(as_plain(v, most) for v in value)}
    if type(value) is dict:
        return {"d": [[as_plain(k, most), as_plain(v, most)] for k, v in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        if value.nbytes > most:
            raise Undescribed(f"an array of {value.nbytes} bytes lies in the program's memory")
        data = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("=")))
        text = base64.b64encode(data.tobytes()).decode()
        return {"a": [value.dtype.name, list(value.shape), text]}
    raise Undescribed(f"a {type(value).__name__} is no plain data")


def from_plain(said: Any) -> Any:
    """Decode a value; Malformed if it is none."""
    if said is None or isinstance(said, (bool, int, float, str)):
        return said
    need(isinstance(said, dict) and len(said) == 1, f"{said!r:.40} where a value was expected")
    ((kind, inner),) = said.items()
    try:
        return _MAKE[kind](inner)
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"a value of kind {kind!r:.40} ({error!s:.80})") from None


def _array(inner: Any) -> Any:
    name, shape, text = inner
    data = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    found = data.copy().view(DTYPES[name]).reshape(shape)
    return found if shape else found[()]


_MAKE: Mapping[str, Any] = {
    "f": float,
    "l": lambda inner: [from_plain(v) for v in inner],
    "t": lambda inner: tuple(from_plain(v) for v in inner),
    "s": lambda inner: frozenset(from_plain(v) for v in inner),
    "d": lambda inner: {from_plain(k): from_plain(v) for k, v in inner},
    "a": _array,
}


def plain_structure(structure: Structure) -> Any:
    """A tree of tuples, lists and dicts."""
    kind = structure.kind
    if kind is LEAF:
        return "*"
    if kind is type(None):
        return None
    children = [plain_structure(c) for c in structure.children]
    if kind in (tuple, list):
        return ["t" if kind is tuple else "l", children]
    if kind is dict:
        return ["d", children, [as_plain(k) for k in structure.extra]]
    raise Undescribed(f"samples are objects of the class {kind.__name__}")


def made_structure(said: Any) -> Structure:
    return flatten(_tree(said))[1]


def _tree(said: Any) -> Any:
    if said == "*":
        return 0
    if said is None:
        return None
    need(isinstance(said, list) and len(said) in (2, 3), f"{said!r:.40} where a tree was expected")
    children = [_tree(c) for c in said[1]]
    if said[0] == "d":
        return dict(zip([from_plain(k) for k in said[2]], children, strict=True))
    return tuple(children) if said[0] == "t" else children
