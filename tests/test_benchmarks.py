"""The runner of benchmarks, on workloads so small that they say nothing about speed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import (
    busy,
    cluster,
    compiling,
    errors,
    everyday,
    in_place,
    kernels,
    layouts,
    machine,
    network_systems,
    network_texts,
    overlap,
    planning,
    predict,
    runner,
    space,
    table,
)
from benchmarks.dispatch import numpy_case
from benchmarks.workload import SYSTEMS, System, agree, summary
from ostinato import sessions
from tests.clusters import needs_mpi
from tests.ops.test_special import IN_FLOATS
from tests.small_suite import WORKLOADS, fails, ones
from tests.thorough import some

KEYS = ["workload", "system", "variant", "median_s", "min_s", "max_s", "n"]


@pytest.fixture(scope="module")
def rows():
    SYSTEMS["nowhere"] = System(("no_such_library",))
    try:
        found = list(runner.run("tests.small_suite", repeat=1, rounds=3))
    finally:
        del SYSTEMS["nowhere"]
    return found


def named(rows, system, variant=""):
    (found,) = [r for r in rows if (r["system"], r["variant"]) == (system, variant)]
    return found


@pytest.mark.parametrize("system", ["ostinato", "numpy"])
def test_a_row_has_what_was_promised(rows, system):
    found = named(rows, system)
    assert list(json.loads(json.dumps(found))) == KEYS
    assert found["workload"] == "double"
    assert found["n"] == 3
    assert 0 < found["min_s"] <= found["median_s"] <= found["max_s"] < 60


def test_a_wrong_answer_has_no_time(rows):
    found = named(rows, "numpy", "wrong")
    assert (found["problem"], found["median_s"], found["n"]) == ("wrong", None, 0)
    assert "off by" in found["note"]


def test_who_fails_says_why(rows):
    found = named(rows, "numpy", "fails")
    assert (found["problem"], found["note"]) == ("failed", "RuntimeError: it does not start")


def test_a_case_may_have_its_own_clock(rows):
    assert named(rows, "numpy", "clock")["median_s"] == 0.25


def test_who_is_absent_is_reported_once_and_the_others_run(rows):
    found = named(rows, "nowhere")
    assert found["workload"] == ""
    assert found["problem"] == "absent"
    assert found["note"] == "no_such_library is missing: pip install 'ostinato[bench]'"


def test_what_hangs_or_fails_is_ended_and_the_rest_goes_on(monkeypatch):
    """Where time is limited: who does not answer by then, and a workload that nobody can expect."""
    sound = WORKLOADS[0].cases["numpy"]
    wrong = dataclasses.replace(WORKLOADS[0], expect=fails, cases={"numpy": sound})
    both = {"numpy": sound, "numpy/hangs": sound}
    hangs = dataclasses.replace(WORKLOADS[0], cases=both, name="hangs")
    last = dataclasses.replace(wrong, name="last")
    suite = types.SimpleNamespace(WORKLOADS=(wrong, hangs, last))
    monkeypatch.setattr(runner.importlib, "import_module", lambda _: suite)
    asleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(runner, "command", lambda *_: asleep)
    start = time.monotonic()
    found = list(runner.run("these", repeat=1, rounds=1, until=start + 1))
    assert [(r["workload"], r["variant"], r["problem"]) for r in found] == [
        ("double", "", "failed"),
        ("hangs", "", "failed"),
        ("hangs", "hangs", "failed"),
        ("last", "", "skipped"),
    ]
    assert found[0]["note"] == "RuntimeError: it does not start"
    assert found[1]["note"].startswith("took longer than")


def test_plans_of_ours_are_kept_beside_the_rows(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMARK_PLANS", str(tmp_path / "plans"))
    asked = {"only": ["ostinato"], "repeat": 1, "rounds": 1}
    (row,) = runner.run("tests.small_suite", **asked)
    assert "problem" not in row
    text = (tmp_path / "plans").read_text()
    assert text.startswith("== double, ostinato\n\nplan ")


def test_the_table(rows, capsys):
    printer = table.Printer({"double": "x + x"})
    for row in rows:
        printer.add(row)
    printer.end()
    text = capsys.readouterr().out
    assert "nowhere: not measured, no_such_library is missing: pip install" in text
    assert "double: x + x" in text
    (line,) = [x for x in text.splitlines() if x.split()[:2] == ["numpy", "clock"]]
    assert float(line.split()[-1]) > 1000  # peer / ours


def test_answers_are_compared():
    a = np.linspace(0, 1, 5000)
    assert agree(summary(a), summary(a + 1e-7), 1e-6) == ""
    assert "shape" in agree(summary(a[1:]), summary(a), 1e-6)
    assert "off by" in agree(summary(a * 1.01), summary(a), 1e-6)
    assert "off by nan" in agree(summary(a * np.nan), summary(a), 1e-6)
    b = a.copy()
    b[2] += 100  # an element that is not among the shown ones
    assert "sum of sizes" in agree(summary(b), summary(a), 1e-3)


def test_drawn_programs_have_the_size_that_they_say():
    stages = planning.Planned(100)
    try:
        assert len(stages.trace().nodes) == 100
        np.testing.assert_allclose(stages.answer(), planning.expected(100), rtol=1e-4, atol=1e-5)
    finally:
        stages.session.close()


@pytest.mark.parametrize(("suite", "scale"), [(kernels, "0.002"), (everyday, "0.01")])
def test_small_workloads_give_what_is_expected(monkeypatch, suite, scale):
    """Those of NumPy and ours, of every other workload, as the runner compares them, too; each states what
    the machine must at least do."""
    monkeypatch.setenv("BENCHMARK_SCALE", scale)
    with sessions.using(None):
        try:
            small = importlib.reload(suite)
            for workload in small.WORKLOADS:
                assert machine.floor({"copy_bytes_per_s": 1e10, "sgemm_flops": 1e11}, workload) > 0
            for workload in some(small.WORKLOADS, 2):
                wanted = summary(workload.expect())
                for name in ("numpy", "ostinato"):
                    found = workload.cases[name]()
                    note = agree(summary(found.answer()), wanted, workload.tolerance)
                    assert note == "", (workload.name, name)
        finally:
            monkeypatch.undo()
            importlib.reload(suite)
            for session in list(sessions._everybodys):  # as a benchmark's process ends them
                session.close()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("alexnet", 724.4), ("googlenet", 1582.7), ("resnet50", 4089), ("inception", 5713)],
)
def test_texts_of_networks_have_the_published_multiply_adds(name, millions):
    found = {n.name: n for n in network_texts.NETWORKS}[name]
    assert found.flops(train=False) / found.shape[0] / 2e6 == pytest.approx(millions, rel=1e-3)
    assert found.flops(train=True) > 2.8 * found.flops(train=False)


@pytest.mark.parametrize("name", ["mlp", "transformer", "resnet50"])
def test_texts_of_networks_are_the_same_networks(monkeypatch, name):
    """In our words, and in those of models of ONNX."""
    reference = pytest.importorskip("onnx.reference")
    monkeypatch.setenv("BENCHMARK_SCALE", "0.125")
    network = {n.name: n for n in network_texts.NETWORKS}[name]
    if len(network.shape) > 2:
        network = network._replace(shape=(2, 3, 32, 32))
    elif name == "transformer":
        network = network._replace(shape=(2, 6))
    made = network_texts.Made(network)
    model = reference.ReferenceEvaluator(network_systems.onnx_model(network, made))
    (wanted,) = model.run(None, {"x": made.x})
    f = network_systems.Ostinato(made.weights, made.running, False)
    note = agree(summary(network.text(f, made.x)), summary(wanted), 1e-4)
    assert note == ""


def test_losses_may_be_off_by_what_rounding_of_operands_does(monkeypatch):
    """Each by its own bound, which is none where little is amplified; and not by more."""
    monkeypatch.setenv("BENCHMARK_SCALE", "0.0625")
    monkeypatch.setenv("OSTINATO_CACHE", "off")
    (network,) = [n for n in network_texts.NETWORKS if n.name == "mlp"]
    wanted = network_systems.expected(network, True)
    assert wanted.answer.dtype == np.float64
    assert (wanted.bounds > 0).all()
    assert (wanted.bounds < 1e-4 * wanted.answer).all()
    found = network_systems.ostinato(network, True).answer()
    assert agree(summary(found), summary(wanted), 0.0) == ""
    worse = wanted.answer + 2 * wanted.bounds * [0, 0, 1]
    assert agree(summary(worse), summary(wanted), 0.0).endswith("more than rounding")
    for session in list(sessions._everybodys):
        session.close()


def test_loops_give_what_numpys_give():
    """Some of those that update in place, each as the runner compares it."""
    with sessions.using(None):
        for workload in some(in_place.WORKLOADS, 3):
            found = workload.cases["ostinato"]()
            note = agree(summary(found.answer()), summary(workload.expect()), workload.tolerance)
            assert note == "", workload.name
            assert found.note().startswith("first call ")
        for session in list(sessions._everybodys):
            session.close()


def test_special_functions_of_floats_have_the_errors_that_are_told(monkeypatch):
    """As the page on performance says of them."""
    few = {n: lambda f=f: [x[::500] for x in f()] for n, f in everyday.SPECIAL.items()}
    monkeypatch.setattr(errors, "SPECIAL", few)
    found = dict(errors.errors(["ostinato"]))
    assert found.keys() == few.keys()
    for name, of in found.items():
        assert 0.4 < of["ostinato"] < IN_FLOATS.get(name, 0.52), name


def test_a_peers_process_is_without_ours():
    """What is asked of the machine is asked once, elsewhere."""
    code = (
        "import sys, benchmarks.child, benchmarks.cluster, benchmarks.compiling, benchmarks.kernels\n"
        "assert not any(name.startswith('ostinato') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_twenty_functions_in_a_new_process():
    (workload,) = compiling.WORKLOADS
    case = compiling.in_a_process("ostinato", "warm")
    assert agree(summary(case.answer()), summary(workload.expect()), workload.tolerance) == ""
    assert case.clock() > 0


@needs_mpi
def test_two_ranks_give_what_is_expected_and_orders_do_not_grow(monkeypatch):
    """By hand and ours; an order is as long for a thousand operations as for ten."""
    monkeypatch.setenv("BENCHMARK_SCALE", "0.002")
    names = {"chain10", "chain1000", *some(["kmeans", "matvec", "allreduce1KB"])}
    few = tuple(w for w in cluster.WORKLOADS if w.name in names)
    monkeypatch.setattr(cluster, "WORKLOADS", few)
    rows = runner.run("benchmarks.cluster", only=["ostinato", "mpi"], repeat=1, rounds=1)
    found = [r for r in rows if r["workload"]]
    assert {r["workload"] for r in found} == names
    assert [r for r in found if "problem" in r] == []
    orders = {r["note"] for r in found if r["workload"].startswith("chain") and "note" in r}
    assert len(orders) == 1
    assert float(orders.pop().split()[0]) < 80


def test_what_else_there_is_to_say_ends_the_line(capsys):
    row = {"workload": "w", "system": "ostinato", "variant": "", "n": 3, "note": "64 B an order"}
    row |= dict.fromkeys(("median_s", "min_s", "max_s"), 0.5)
    printer = table.Printer({})
    printer.add(row)
    printer.end()
    assert capsys.readouterr().out.splitlines()[-1].endswith("  64 B an order")


def test_shares_of_the_roof(capsys):
    row = {"workload": "w", "system": "numpy", "variant": "", "n": 3}
    row |= dict.fromkeys(("median_s", "min_s", "max_s"), 0.5)
    printer = table.Printer({}, {"w": 0.1})
    printer.add(row)
    printer.end()
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "20%"


def test_suites_are_listed(capsys):
    assert command.main([]) == 0
    assert [x.split()[0] for x in capsys.readouterr().out.splitlines()] == list(command.SUITES)


def test_planning_is_timed_in_processes_of_its_own(capsys):
    asked = ["planner", "--workload", "k-means", "--mesh", "2,4x2", "--repeat", "1", "--json"]
    assert command.main(asked) == 0
    _, *rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["program"], r["mesh"]) for r in rows] == [("k-means", [2]), ("k-means", [4, 2])]
    for found in rows:
        assert found["gap"] == 0
        assert 0 < found["layouts_s"] < found["plan_s"] < 10
        assert found["nodes"] > 10


def test_messages_are_slowed_down(capsys, monkeypatch):
    small = {"network": lambda: overlap.network(3, 16, 32)}
    monkeypatch.setattr(overlap, "PROGRAMS", small)
    asked = ["overlap", "--json", "--seconds", "0.02", "--share", "3", "--latency", "0.003"]
    assert command.main(asked) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["messages"] >= 1
    assert row["compute"] <= row["least"] <= row["apart"]
    assert row["apart"] > 0.003 * row["messages"]


def test_networks_are_cut_in_space(capsys, monkeypatch):
    monkeypatch.setattr(space, "by_ranks", lambda *_: None)
    # whose planes take longer to make again than one message less saves
    monkeypatch.setattr(overlap, "PROGRAMS", {"volumes": lambda: overlap.volumes(32, 16, 2)})
    asked = ["space", "--json", "--workload", "cosmoflow,volumes", "--cube", "8", "--width", "1"]
    assert command.main([*asked, "--seconds", "0.01"]) == 0
    steps, hidden = map(json.loads, capsys.readouterr().out.splitlines())
    assert steps["ratio"] > 0
    assert steps["of work"] > 0
    assert hidden["messages"] == 2


@pytest.mark.parametrize("kind", space.READ)
def test_workers_read_no_more_than_their_slabs_and_halos(kind):
    pytest.importorskip("h5py" if kind == "hdf5" else "zarr")
    assert 0.9 < space.reads(kind, 96, 2) <= 1.05
    (again, _), (again, moved) = (space.kept(kind, 32, 2) for _ in range(2))  # the first imports
    assert again < 0.01
    assert moved == 1


def test_plans_are_measured_beside_layouts_by_hand(capsys, monkeypatch):
    small = {
        "network": (layouts.step, ([(8, 8)] * 2, (16, 8), (16, 8)), (1, 2), None),
        "heat": (layouts.heat, ((18, 4),), (0,), 0),
    }
    monkeypatch.setattr(layouts, "programs", lambda: small)
    assert command.main(["layouts", "--json", "--workers", "2", "--seconds", "0.01"]) == 0
    rows = [*map(json.loads, capsys.readouterr().out.splitlines())]
    assert [r["program"] for r in rows] == ["network", "heat"]
    assert all(0 < r[kind] < 10 for r in rows for kind in ("planned", *layouts.HANDS))


def test_what_is_predicted_is_compared(capsys):
    assert len(predict.PROGRAMS) == 12
    asked = ["predict", "--workload", "statistics", "--workers", "1", "--seconds", "0.01"]
    assert command.main(asked) == 0
    _, row, times, memory = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == ["statistics", "1"]
    assert 0.8 < float(row.split()[-1]) < 1.25  # of memory
    assert times.startswith("error of time")
    assert memory.startswith("error of memory")


def test_layouts_are_ranked(capsys, monkeypatch):
    few = predict.products(lambda x: x * 2, (512, 8))
    monkeypatch.setattr(predict, "RIVALS", {"doubled": few})
    assert command.main(["predict", "--layouts", "--workers", "2", "--seconds", "0.01"]) == 0
    assert "doubled          2 workers" in capsys.readouterr().out


def test_others_compute_beside_a_case_and_end(monkeypatch):
    begun, ends = [], []
    monkeypatch.setattr(busy, "LONG", 1e-3)
    monkeypatch.setattr(busy.atexit, "register", ends.append)
    start = busy.Others.__init__
    monkeypatch.setattr(busy.Others, "__init__", lambda o, n: (begun.append(o), start(o, n, 60))[0])
    made = busy.beside(lambda: numpy_case(ones(), lambda x: x * 1, 3), 2)
    try:
        assert begun == []
        np.testing.assert_array_equal(made.answer(), ones())
        assert [p.poll() for p in begun[0].processes] == [None] * 2
        assert made.clock() > 0
        assert made.note().endswith(" x without others")
    finally:
        for end in ends:
            end()
    assert all(p.poll() for p in begun[0].processes)


def test_busy_work_gives_what_is_expected():
    for workload in busy.WORKLOADS:
        assert {"ostinato", "ostinato/busy", "jax", "jax/busy"} <= {*workload.cases}
    (work,) = [w for w in busy.WORKLOADS if w.name == "products"]
    assert agree(summary(work.cases["ostinato"]().answer()), summary(work.expect()), 1e-3) == ""


def test_an_unknown_system_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["dispatch", "--only", "nump"])
    assert "got nump; needed some of ostinato, numpy" in capsys.readouterr().err
