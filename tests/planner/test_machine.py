"""Machines as data: presets with their sources, files, what is kept of measurements; and what rates say."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from pathlib import Path

import pytest
from ostinato.planner import machine
from ostinato.planner.machine import (
    NOMINAL,
    PRESETS,
    Link,
    Machine,
    Rate,
    Seen,
    keep,
    known,
    presets,
    resolve,
)

from ostinato import settings
from ostinato.errors import ArgumentError

DTYPES = ("float32", "float64", "bfloat16", "float16")


def test_every_preset_is_whole_and_says_where_it_is_from() -> None:
    assert {"h200-ib", "dgx-v100", "p100-pcie", "cpu-10gbe", "cpu-100gbe"} <= set(presets())
    for name in presets():
        found = resolve(name)
        text = (PRESETS / f"{name}.toml").read_text()
        data = tomllib.loads(text)
        assert found.name == name
        assert found.about
        assert [r.dtype for r in found.products if r.dtype in DTYPES]
        for table in ("stream", "products", "elements", "functions", "levels"):
            for row in data[table]:
                assert len(row["source"]) > 5, f"{name}: {table} without its source"
        for line in text.splitlines():
            if line.partition(" = ")[0] in ("memory", "call_seconds", "run_seconds", "background"):
                assert "#" in line, f"{name}: {line} without its source"
        assert found.levels[-1][0] == 0  # joins all


def test_an_axis_has_the_link_that_spans_it() -> None:
    found = resolve("h200-ib")
    names = [link.name for link in found.links((256, 8))]
    assert names == ["InfiniBand", "NVLink"]
    assert [link.name for link in found.links((4, 4, 2))] == ["InfiniBand", "NVLink", "NVLink"][
        :1
    ] + ["NVLink"] * 2
    assert found.levels_of((16,)) == (1,)
    assert found.levels_of((8,)) == (0,)


def test_a_machine_is_the_same_after_a_file(tmp_path: Path) -> None:
    seen = (Seen("all_reduce", 2, 1e-5, 1e9),)
    mine = dataclasses.replace(
        resolve("cpu-10gbe"),
        name="mine",
        factors=(Rate("float32", 1e9, 1e6),),
        levels=((0, Link(1e-6, 1e9, "bus", seen)),),
    )
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(mine.data))
    assert Machine.load(path) == mine
    assert resolve(path) == mine
    assert resolve("nominal") is NOMINAL
    assert resolve(mine) is mine


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("{}", "KeyError"),
        ("nonsense", "JSONDecodeError"),
        (json.dumps({**NOMINAL.data, "stream": [{"bytes": 1, "bandwidth": 0}]}), "above 0"),
    ],
)
def test_a_file_that_is_no_machine_is_refused(text: str, about: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArgumentError, match=about):
        Machine.load(tmp_path / "x.json")


def test_an_unknown_name_names_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="'h200-ib'"):
        resolve("abacus")


def test_products_reach_their_rate_as_they_grow() -> None:
    found = dataclasses.replace(
        NOMINAL, products=(Rate("float32", 1e12, 1e9), Rate("float64", 5e11, 1e9))
    )
    assert found.flops_seconds(1e9, True) == pytest.approx(2e-3)  # at half of it
    assert found.flops_seconds(1e13, True) == pytest.approx(10, rel=1e-3)
    assert found.flops_seconds(1e13, True, "float64") == pytest.approx(20, rel=1e-3)
    assert found.flops_seconds(1e13, True, "int8") == found.flops_seconds(1e13, True)


def test_bandwidth_falls_from_cache_to_memory() -> None:
    found = dataclasses.replace(NOMINAL, stream=((1e6, 1e11), (1e8, 1e9)))
    assert found.bandwidth(10) == 1e11
    assert found.bandwidth(1e7) == pytest.approx(1e10)
    assert found.bandwidth(1e12) == 1e9
    sizes = [2.0**k for k in range(8, 40)]
    rates = [found.bandwidth(n) for n in sizes]
    assert rates == sorted(rates, reverse=True)


def test_the_nominal_machine_has_two_kinds_of_memory() -> None:
    assert NOMINAL.kernel_seconds(0, 0, False) == NOMINAL.call_seconds
    assert NOMINAL.kernel_seconds(0, 1e5, False) == pytest.approx(2e-6 + 1e5 / 1e11)
    assert NOMINAL.kernel_seconds(0, 1e9, False) == pytest.approx(2e-6 + 1e9 / 2e10)
    assert NOMINAL.kernel_seconds(1e11, 1, True) == pytest.approx(1, rel=1e-3)


def test_what_was_measured_is_what_a_collective_takes() -> None:
    link = Link(1e-6, 1e9, seen=(Seen("all_reduce", 2, 1e-4, 1e8),))
    assert link.all_reduce(2, 1e6) == pytest.approx(1e-4 + 1e-2)
    assert link.all_reduce(4, 1e6) == pytest.approx(2e-4 + 1.5e-2)
    assert link.all_reduce(1, 1e6) == 0
    assert link.all_gather(2, 1e6) == Link(1e-6, 1e9).all_gather(2, 1e6)


def test_what_is_kept_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache", tmp_path / "cache")
    assert known("cpu", (2,)) is NOMINAL
    two, four = (dataclasses.replace(NOMINAL, name=n, call_seconds=1e-3) for n in ("two", "four"))
    keep(two, 2, apart=False)
    keep(four, 4, apart=True)
    assert known("cpu", (2, 1)) == two
    assert known("cpu", (2, 2), apart=True) == four
    assert known("cpu", (2, 2)) is NOMINAL
    assert known("cuda", (2,)) is NOMINAL
    monkeypatch.setattr(machine, "_here", lambda: "elsewhere")  # the same home, another machine
    keep(four, 1, apart=False)
    assert known("cpu", (2, 1)) is NOMINAL
    assert known("cpu", (1,)) == four


def test_nothing_is_kept_where_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache", None)
    keep(NOMINAL, 1, apart=False)
    assert known("cpu", (1,)) is NOMINAL


def test_more_bandwidth_is_never_slower() -> None:
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for n in (2, 3, 8, 2048):
            for size in (1.0, 1e4, 1e9):
                times = [getattr(Link(1e-6, b), kind)(n, size) for b in (1e8, 1e9, 1e10, math.inf)]
                assert times == sorted(times, reverse=True)
