"""What kernels' texts follow from, and the texts, on disk: a later process, or an edited program, writes only
those that are new.

A text follows from the operations, how arrays lie, and the processor. A decorated function is one of all
that, and so is its answer, as far as one code of the operations and one processor go."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from ostinato.ops.core import disk_cache
from ostinato.ops.core.code_digest import digest_of_operations
from ostinato.ops.core.encode import encode_value
from ostinato.ops.jit.loops import Loops

from ostinato import settings

from . import llvm

F = TypeVar("F", bound=Callable[..., Any])


def kept_on_disk(function: F) -> F:
    """A function of data, whose answers are lists of texts and numbers, or None, and know no more than its
    arguments do. Who calls it changes no answer."""

    @lru_cache(512)
    @wraps(function)
    def answer(*args: Hashable, **named: Hashable) -> Any:
        disk = disk_cache.open_cache(settings.cache)
        if disk.asked is None:
            return function(*args, **named)
        name = f"texts/{_digest(function.__qualname__, args, named)}.z"
        if (data := disk.read(name)) is not None:
            with contextlib.suppress(ValueError, zlib.error):
                return json.loads(zlib.decompress(data))
        made = function(*args, **named)
        disk.write(name, zlib.compress(json.dumps(made).encode(), 1))
        _tidy(disk)
        return made

    return cast(F, answer)


def _digest(name: str, args: Any, named: Any) -> str:
    asked = [name, *map(_plain, args), {k: _plain(v) for k, v in sorted(named.items())}]
    text = json.dumps([digest_of_operations(), llvm.processor_in_words(), asked])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    return encode_value(dataclasses.astuple(value) if isinstance(value, Loops) else value)


@lru_cache(1)  # once in a process
def _tidy(disk: disk_cache.Cache) -> None:
    disk.keep_within("texts", count=llvm.MOST_KEPT)
