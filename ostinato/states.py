"""Checkpoints: trees of arrays and numbers, saved step by step.

What was saved loads on any number of workers and in any layout, bit for bit. Each worker writes and
reads its parts; nothing is pickled."""

from __future__ import annotations

import atexit
import base64
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, CommunicatorError, DataFileError, OstinatoError
from ostinato.io_pipeline.chunks import ChunkSource
from ostinato.io_pipeline.sinks import ZarrSink
from ostinato.io_pipeline.steps import Steps
from ostinato.ops.core import activity
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.encode import (
    Malformed,
    decode_value,
    encode_value,
    fields,
    integer,
    listing,
    need,
)
from ostinato.ops.core.exchange import chunks_of
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import DTYPES, Spec
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import FIXED, LEAF, Structure, flatten, paths, unflatten
from ostinato.ops.core.user_line import misfit, short, user_line

from .files import error_at_user
from .reading import evaluate
from .sessions import Session, before_close, current

__all__ = ["Saving", "load_state", "save_state", "saved_steps"]

AS_SAVED = "as saved"
_NAME = re.compile(r"[\w~-][\w.~-]*", re.ASCII)
_PLAIN = (bool, int, float, complex, str, bytes)


class Saving:
    """A checkpoint on its way to the disk.

    >>> saving = ost.save_state("run", {"w": ost.ones(2)}, step=4, wait=False)
    >>> saving.wait()
    """

    def __init__(self, step: int, work: Callable[[], None]) -> None:
        self.step = step
        self._error: BaseException | None = None
        self._work: Callable[[], None] | None = work
        self._thread = threading.Thread(target=self._run, name="ostinato-checkpoint")

    def _run(self) -> None:
        assert self._work is not None
        try:
            self._work()
        except BaseException as error:  # raised where somebody waits
            self._error = error
        self._work = None  # which holds the arrays

    @property
    def done(self) -> bool:
        return self._work is None

    def _end(self) -> None:
        """Come back when nothing more is written."""
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self) -> None:
        """Come back when it is written; raise what went wrong, once."""
        self._end()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __repr__(self) -> str:
        return f"<Saving: step {self.step}, {'done' if self.done else 'on its way'}>"


_last: Saving | None = None
_one = make_lock()  # save at a time


def _settle() -> None:
    """Wait for saves on their way before the workers go, or the threads that write."""
    if _last is not None:
        _last._end()


def forgive_lost() -> None:
    """Who begins anew after the workers died does not ask for the checkpoint that they took along."""
    _settle()
    if _last is not None and isinstance(_last._error, CommunicatorError):
        _last._error = None


before_close.append(_settle)
# Pools of threads take no more work before other threads are waited for
getattr(threading, "_register_atexit", atexit.register)(_settle)


@atexit.register
def _at_the_end() -> None:
    """Tell what went wrong in the background, if nobody waits."""
    if _last is not None:
        _last.wait()


@door
def save_state(
    path: str | os.PathLike[str],
    state: Any,
    /,
    *,
    step: int,
    keep: int | None = 3,
    wait: bool = True,
) -> Saving:
    """Write a tree of arrays, numbers and strings (in dicts, lists, tuples, dataclasses) as a
    checkpoint in a folder. It is there whole or not at all, whenever the process is killed.

    step: its number; one that is there is replaced. keep: so many checkpoints stay, the last that
    were written; None for all. wait=False writes in the background what the state is now, and gives
    a handle with `wait()`; what saves or loads next waits for it, and so does the end of a session
    or of the script.

    >>> ost.save_state("run", {"w": ost.ones(2), "epoch": 3}, step=3)
    <Saving: step 3, done>
    """
    global _last
    number = _whole("save_state(step=)", step, 0)
    most = None if keep is None else _whole("save_state(keep=)", keep, 1)
    leaves, structure = flatten(state)
    session, line = current(), short(user_line())
    told, named = _taken(leaves, paths(structure, "state"), session)
    if not wait:
        for _, operand in named:
            operand.shared = True  # so that who is given the array writes to a copy
    content = {"step": number, "tree": _tree(structure, iter(told))}
    steps = Steps(path)
    with _one:
        if _last is not None:
            _last.wait()
        saving = _last = Saving(
            number, lambda: _write(session, steps, number, content, named, most, line)
        )
        if wait:
            saving._run()
            saving.wait()
        else:
            saving._thread.start()
    return saving


def saved_steps(path: str | os.PathLike[str], /) -> list[int]:
    """The steps that have a checkpoint in a folder, the one that was written last at the end.

    >>> ost.saved_steps("run")
    [3]
    """
    return _settled(path).known()


def _settled(path: str | os.PathLike[str]) -> Steps:
    """The checkpoints in a folder, with the one that this process is writing."""
    _settle()
    return Steps(path)


def load_state(
    path: str | os.PathLike[str],
    /,
    *,
    step: int | None = None,
    split: Any = AS_SAVED,
    like: Any = None,
) -> Any:
    """The tree of a checkpoint: the one of a step, or the newest that is whole, with a warning that
    names those that are not.

    split: how the arrays lie on the workers: as in `asarray`, for those that have these dimensions;
    or a function of an array's name and shape that gives it; else as they lay when they were saved.
    like: a tree to be filled, e.g. of dataclasses, which else come back as dicts.

    >>> ost.load_state("run")
    {'epoch': 3, 'w': Array([1., 1.], dtype=float64)}
    """
    steps = _settled(path)
    if step is not None:
        return _loaded(steps, _whole("load_state(step=)", step, 0), split, like)
    for number in reversed(steps.known()):
        try:
            return _loaded(steps, number, split, like)
        except DataFileError as error:
            warnings.warn(
                f"the checkpoint of step {number} is damaged, so an older one is loaded. {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    got, needed = "no checkpoint that is whole", "one that ost.save_state wrote"
    raise misfit(DataFileError, f"folder {os.fspath(path)}", got=got, needed=needed)


def _whole(what: str, value: Any, least: int) -> int:
    if isinstance(value, (int, np.integer)) and type(value) is not bool and value >= least:
        return int(value)
    got = repr(value)
    raise misfit(ArgumentError, what, got=got, needed=f"a whole number that is {least} or more")


# -- writing -------------------------------------------------------------------------------
def _taken(
    leaves: Sequence[Any], names: Sequence[str], session: Session
) -> tuple[list[Any], list[tuple[str, Operand]]]:
    """Split leaves into what the manifest says of each, and arrays with the names of their folders."""
    arrays = [_array(x, name) for x, name in zip(leaves, names, strict=True)]
    evaluate(arrays)
    told: list[Any] = []
    named: list[tuple[str, Operand]] = []
    taken = {"manifest", "zarr.json"}
    for leaf, x, name in zip(leaves, arrays, names, strict=True):
        if x is None:
            told.append({"value": _encoded(leaf)})
            continue
        told.append({"array": len(named)})
        named.append((_folder(name, taken), session.hold_array(x)))
    return told, named


def _array(x: Any, name: str) -> Array | None:
    """A leaf that is an array; None for numbers and strings."""
    if isinstance(x, Array):
        return x
    if type(x) in _PLAIN:
        return None
    if isinstance(x, (np.ndarray, np.generic)):
        return as_array(x)
    needed = "arrays, numbers, strings, None; in dicts, lists, tuples, dataclasses"
    raise misfit(ArgumentError, "save_state", got=f"a {type(x).__name__} at {name}", needed=needed)


def _folder(name: str, taken: set[str]) -> str:
    """A leaf's name as that of a folder: `state['w'][0]` is `w.0`."""
    words = re.findall(r"[\w~-]+", name.removeprefix("state"), re.ASCII)
    plain = ".".join(words)[:100] or "state"
    found, count = plain, 1
    while found.lower() in taken:  # some systems do not tell a from A
        count += 1
        found = f"{plain}~{count}"
    taken.add(found.lower())
    return found


def _write(
    session: Session,
    steps: Steps,
    step: int,
    content: dict[str, Any],
    named: Sequence[tuple[str, Operand]],
    keep: int | None,
    line: str,
) -> None:
    try:
        size = sum(operand.spec.nbytes for _, operand in named)
        with (
            activity.task("write", f"saving step {step}", size) as seen,
            steps.writing(step) as part,
        ):
            content["arrays"] = [
                _put(session, part / name, operand, seen) for name, operand in named
            ]
            steps.publish(part, step, content, keep)
    except OstinatoError as error:
        text = f"the checkpoint of step {step} was not written. {error}"
        raise type(error).because(text.removesuffix("."), line=line) from None


def _put(session: Session, folder: Path, operand: Operand, seen: activity.Task) -> dict[str, Any]:
    """Write an array; what the manifest says of it."""
    spec = operand.spec
    assert spec.layout is not None
    chunks = chunks_of(spec.layout, spec.shape, spec.dtype.itemsize)
    sink = ZarrSink(folder, None, spec.shape, spec.dtype, chunks, str(folder), checked=True)
    sink.create()
    sums = dict(session.engine.write(operand, sink))
    sums.update([sink.seal()])
    seen.step(spec.nbytes)
    return {
        "name": folder.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype.name,
        "chunks": list(chunks),
        "splits": list(spec.layout.splits),
        "sums": sums,
    }


# -- trees ---------------------------------------------------------------------------------
def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    return encode_value(value)


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("b"), str):
        return base64.b64decode(value["b"])
    return value if type(value) is int else decode_value(value)


def _word(structure: Structure) -> str:
    """Describe what is around leaves, for JSON."""
    kind = structure.kind
    if kind is LEAF:
        return "leaf"
    if kind is type(None) or kind is FIXED:
        return "value"
    if kind is list or kind is tuple:
        return str(kind.__name__)
    return "dict" if issubclass(kind, dict) else "object"


def _tree(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = _word(structure)
    if kind == "leaf":
        return next(leaves)
    if kind == "value":
        return {"value": None}
    children = [_tree(child, leaves) for child in structure.children]
    if kind == "dict":
        keys = [_key(key) for key in structure.extra]
        return {kind: [list(pair) for pair in zip(keys, children, strict=True)]}
    if kind == "object":
        return {kind: [list(pair) for pair in zip(_fields(structure), children, strict=True)]}
    return {kind: children}


def _key(key: Any) -> Any:
    if key is None or type(key) in _PLAIN or type(key) is tuple:
        try:
            said = _encoded(key)
            _decoded(said)  # what cannot be read is not written
            return said
        except (TypeError, Malformed):
            pass
    got = f"the key {key!r} in a dict"
    raise misfit(ArgumentError, "save_state", got=got, needed="strings or numbers")


def _fields(structure: Structure) -> Sequence[str]:
    """Fields of a dataclass or a named tuple."""
    return structure.kind._fields if structure.extra is None else structure.extra


def _node(node: Any) -> tuple[str, Any]:
    need(isinstance(node, dict) and len(node) == 1, f"a tree {node!r:.40}")
    ((kind, content),) = node.items()
    return kind, content


def _pairs(content: Any) -> list[tuple[Any, Any]]:
    return [
        (_decoded(key), value) for key, value in (listing(p, None, 2) for p in listing(content))
    ]


def _grown(node: Any, leaf: Callable[[str, Any], Any]) -> Any:
    """The tree that JSON tells of, objects as dicts."""
    kind, content = _node(node)
    if kind in ("list", "tuple"):
        made = listing(content, lambda n: _grown(n, leaf))
        return made if kind == "list" else tuple(made)
    if kind in ("dict", "object"):
        return {key: _grown(value, leaf) for key, value in _pairs(content)}
    return leaf(kind, content)


def _matched(structure: Structure, node: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Match each leaf of a tree like this with what JSON has."""
    kind, content = _node(node)
    wanted = _word(structure)
    if wanted == "leaf" and kind in ("array", "value"):
        yield kind, content
        return
    if kind != wanted or (wanted == "value" and content is not None):
        raise _unlike(name, _a(kind), "None" if wanted == "value" else _a(wanted))
    if kind == "value":
        return
    keys: Sequence[Any] = range(len(structure.children))
    if kind == "dict":
        keys = structure.extra
    elif kind == "object":
        keys = _fields(structure)
    has = dict(enumerate(listing(content)) if kind in ("list", "tuple") else _pairs(content))
    if set(keys) != set(has):
        raise _unlike(name, f"{sorted(has, key=repr)}", f"{sorted(keys, key=repr)}")
    for key, child in zip(keys, structure.children, strict=True):
        step = f".{key}" if kind == "object" else f"[{key!r}]"
        yield from _matched(child, has[key], name + step)


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'ao' else 'a'} {word}"


def _unlike(name: str, got: str, needed: str) -> OstinatoError:
    return misfit(
        ArgumentError,
        "load_state(like=)",
        got=f"{got} in the checkpoint at {name}",
        needed=f"{needed}, as in like",
    )


# -- reading -------------------------------------------------------------------------------
class _Saved:
    """An array of a checkpoint."""

    def __init__(self, source: ChunkSource, name: str, splits: tuple[int | None, ...]) -> None:
        self.source = source
        self.name = name
        self.splits = splits

    def load(self, split: Any) -> Array:
        mesh = current().target.mesh
        if split == AS_SAVED:
            alike = len(self.splits) == len(mesh)
            split = self.splits if alike else next((s for s in self.splits if s is not None), None)
        elif callable(split):
            split = split(self.name, self.source.shape)
        else:
            split = _if_it_has(split, len(self.source.shape))
        return from_operand(current().attach(self.source, split, resident=True))


def _if_it_has(split: Any, ndim: int) -> Any:
    """A split, if an array has so many dimensions."""
    asked = split if isinstance(split, (tuple, list)) else (split,)
    lacks = any(isinstance(s, int) and not -ndim <= s < ndim for s in asked)
    return None if lacks else split


def _loaded(steps: Steps, step: int, split: Any, like: Any) -> Any:
    try:
        leaves, structure, splits = _parsed(steps.folder(step), steps.read(step), split, like)
        count = sum(isinstance(x, _Saved) for x in leaves)
        made: list[Any] = []
        with activity.task("read", f"loading step {step}", count) as seen:
            for x, s in zip(leaves, splits, strict=True):
                made.append(x.load(s) if isinstance(x, _Saved) else x)
                seen.step(isinstance(x, _Saved))
    except DataFileError as error:
        raise error_at_user(error) from None
    return unflatten(structure, made)


def _parsed(
    folder: Path, content: dict[str, Any], split: Any, like: Any
) -> tuple[Sequence[Any], Structure, Sequence[Any]]:
    """The leaves that a checkpoint has, what is around them, and how they are to lie."""
    try:
        tree, rows, sums = fields(content, "tree", "arrays", "sums")
        saved = [_saved(folder, row) for row in listing(rows)]
        need(isinstance(sums, dict), "no checksums")
        ChunkSource(str(folder), None, (), DTYPES["bool"], (), sums)  # looks at the header

        def leaf(kind: str, content: Any) -> Any:
            if kind == "array":
                return saved[integer(content, 0, len(saved) - 1)]
            need(kind == "value", f"a tree of kind {kind!r:.40}")
            return _decoded(content)

        if like is None:
            leaves, structure = flatten(_grown(tree, leaf))
            return leaves, structure, [split] * len(leaves)
        given, structure = flatten(like)
        leaves = [leaf(*node) for node in _matched(structure, tree, "like")]
        named = zip(given, leaves, paths(structure, "like"), strict=True)
        return leaves, structure, [_place(x, found, name, split) for x, found, name in named]
    except OstinatoError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        made = DataFileError.because(f"folder {folder}", got=str(error), needed="a checkpoint")
        raise made from None


def _saved(folder: Path, row: Any) -> _Saved:
    name, shape, dtype, chunks, splits, sums = fields(
        row, "name", "shape", "dtype", "chunks", "splits", "sums"
    )
    need(isinstance(name, str) and _NAME.fullmatch(name) is not None, f"a name {name!r:.40}")
    need(isinstance(dtype, str) and dtype in DTYPES, f"a dtype {dtype!r:.40}")
    extents = tuple(listing(shape, lambda n: integer(n, 0), 64))
    grid = tuple(listing(chunks, lambda n: integer(n, 1), 64))
    need(isinstance(sums, dict) and len(grid) == len(extents), f"no chunks of {name}")
    count = math.prod(-(-n // c) for n, c in zip(extents, grid, strict=True))
    need(len(sums) == count + 1, f"{len(sums)} files of {name} where {count + 1} were written")
    last = len(extents) - 1
    lay = tuple(listing(splits, lambda s: None if s is None else integer(s, 0, last), 8))
    source = ChunkSource(str(folder / name), None, extents, DTYPES[dtype], grid, sums)
    return _Saved(source, name, lay)


def _place(given: Any, found: Any, name: str, split: Any) -> Any:
    """How an array is to lie: as the one that it takes the place of, if nothing else is asked for
    and that one lies anywhere yet."""
    if not isinstance(found, _Saved) or not isinstance(given, (Array, np.ndarray)):
        return split
    source = found.source
    if (given.shape, given.dtype) != (source.shape, source.dtype):
        got = str(Spec(source.shape, source.dtype))
        raise _unlike(name, got, str(Spec(given.shape, given.dtype)))
    layout = given.spec.layout if isinstance(given, Array) else None
    if split != AS_SAVED or layout is None or len(layout.mesh) != len(current().target.mesh):
        return split
    splits = layout.splits
    return lambda name, shape: splits
