"""Dataclasses whose functions are compiled when they are first called.

Python's own compile six functions for each class when it is made, which was a quarter of the time that an
import of Ostinato took; of most classes a process calls one or two of them, or none. What is compiled is
Python's: it is asked for one function at a time, for a class that has the same fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **how):
        """As Python's; `order`, `unsafe_hash`, `match_args` and `kw_only` are left as they are."""
        return functools.partial(_made, **how) if cls is None else _made(cls, **how)


Function = Callable[..., Any]
FUNCTIONS = {"__init__": "init", "__repr__": "repr", "__eq__": "eq", "__hash__": "unsafe_hash"}


class _Signature:
    """`inspect` looks here first, and then finds that of a compiled `__init__`."""

    def __get__(self, it: object, kind: Any) -> Any:
        getattr(kind.__init__, "compiled", bool)()
        raise AttributeError("__signature__")


def _made(
    cls: Any,
    /,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    **how: bool,
) -> Any:
    given, doc = set(cls.__dict__), cls.__doc__
    if cls.__dict__.get("__hash__", 0) is None:  # as it has an __eq__
        given.discard("__hash__")
    asked = {"__init__": init, "__repr__": repr, "__eq__": eq, "__hash__": eq and frozen}
    bases = [getattr(b, "__dataclass_params__", None) for b in cls.__mro__[1:]]
    below = any(b is not None and b.frozen for b in bases)  # which asks that others are, too
    none = {"init": False, "repr": False, "eq": False, "frozen": frozen and below}
    cls.__doc__ = doc or "-"  # else Python puts a signature there
    made = dataclasses.dataclass(cls, slots=slots, **none, **how)
    made.__doc__ = doc
    for name, is_asked in asked.items():
        if is_asked and name not in given:
            setattr(made, name, _late(made, name, frozen, slots))
    if eq and not frozen and "__hash__" not in given:
        made.__hash__ = None
    made.__signature__ = _Signature()
    if frozen:
        _freeze(made, slots)
    params = made.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = init, repr, eq, frozen
    return made


def _late(cls: Any, name: str, frozen: bool, slots: bool) -> Function:
    def compiled() -> Function:
        fields = [(f.name, f.type, f) for f in dataclasses.fields(cls)]
        after = {"__post_init__": 0} if hasattr(cls, "__post_init__") else {}
        how: dict[str, Any] = {option: of == name for of, option in FUNCTIONS.items()}
        how["frozen"] = frozen and name == "__init__"
        like = dataclasses.make_dataclass(
            cls.__name__, fields, namespace=after, slots=slots and name == "__init__", **how
        )
        function = like.__dict__[name]
        function.__qualname__, function.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, function)
        return function

    def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled()(self, *args, **kwargs)

    late.__name__, late.compiled = name, compiled  # type: ignore[attr-defined]
    return late


def _freeze(cls: Any, slots: bool) -> None:
    names = {f.name for f in dataclasses.fields(cls)}

    def refuses(self: object, name: str) -> bool:
        return type(self) is cls or name in names

    def set_it(self: object, name: str, value: object) -> None:
        if refuses(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: object, name: str) -> None:
        if refuses(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = set_it, delete
    if slots:
        cls.__getstate__, cls.__setstate__ = _state, _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
