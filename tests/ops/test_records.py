"""Dataclasses that compile late are those that Python makes."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest
from ostinato.ops.core import records

HOW: list[dict[str, bool]] = [
    {"frozen": frozen, "slots": slots, "eq": eq, "repr": shown}
    for frozen in (False, True)
    for slots in (False, True)
    for eq, shown in ((True, True), (False, False))
]


def made(dataclass: Any, how: dict[str, bool]) -> Any:
    @dataclass(**how)
    class Point:
        x: int
        y: float = 2.0
        more: list[int] = field(default_factory=list, compare=False)
        told: str = field(default="", repr=False)
        double: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.x)

    return Point


def with_a_child(dataclass: Any, how: dict[str, bool]) -> Any:
    above = made(dataclass, how)

    @dataclass(**how)
    class Child(above):
        z: int = 7

        def __hash__(self) -> int:
            return 5

    return Child


def outcome(call: Any) -> Any:
    try:
        return call()
    except (TypeError, AttributeError) as e:
        return type(e), str(e)


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("make", [made, with_a_child])
def test_they_do_what_pythons_do(make: Any, how: dict[str, bool]) -> None:
    def seen(dataclass: Any) -> list[Any]:
        kind = make(dataclass, how)
        a, b, c = kind(1, more=[3]), kind(1, 2.0, [4]), kind(y=1.0, x=1)
        found = [str(inspect.signature(kind)), a == b, a == c, a != c, a == 1]
        found += [outcome(lambda: hash(a) == hash(b)), outcome(lambda: hash(a) is None)]
        found += [dataclasses.asdict(dataclasses.replace(a, x=5)), kind.__match_args__]
        found += [dataclasses.astuple(x) for x in (copy.copy(a), copy.deepcopy(b))]
        found += [outcome(lambda: kind()), outcome(lambda: kind(1, 2, 3, 4, 5, 6))]
        found += [outcome(lambda: setattr(a, "x", 9)), outcome(lambda: delattr(b, "y"))]
        found += [outcome(lambda: setattr(a, "other", 9)) is None, a.x, hasattr(a, "other")]
        found += [hasattr(kind, "__slots__")]
        found += [kind.__init__.__qualname__, repr(kind.__dataclass_params__)]
        return [*found, repr(a) if how["repr"] else type(a).__repr__ is object.__repr__]

    assert seen(records.dataclass) == seen(dataclasses.dataclass)


@records.dataclass(frozen=True, slots=True)
class Sent:
    text: str
    count: int = 0


def test_they_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent("a", 3))) == Sent("a", 3)


def test_a_plain_class_below_has_its_own_signature() -> None:
    class Own(Sent):
        def __init__(self, only: str) -> None:
            super().__init__(only, 4)

    assert str(inspect.signature(Own)) == "(only: 'str') -> 'None'"
    assert Own("b").count == 4


def test_nothing_is_compiled_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    execute = builtins.exec

    def counted(text: Any, *args: Any) -> None:
        compiled.append(text)
        execute(text, *args)

    monkeypatch.setattr(builtins, "exec", counted)
    kind = made(records.dataclass, {"frozen": True, "slots": True})
    assert not compiled
    point = kind(1)
    first = len(compiled)
    assert first
    assert kind(2) != point
    assert len(compiled) == first + 1
    assert hash(kind(2)) == hash(kind(2))
    assert kind(3) != point
    assert len(compiled) == first + 2
