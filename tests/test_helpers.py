"""The helper itself: it fails for each thing that it claims to check."""

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from tests import seconds
from tests.helpers import assert_same, on, one_of, ways
from tests.thorough import is_quick, starts_processes

X = np.arange(15.0).reshape(5, 3)


def test_passes():
    assert_same(lambda x, y: x + y, np.add, X, X[0])


def test_wrong_value():
    with pytest.raises(AssertionError, match="lazily"):
        assert_same(lambda x: x + 1e-8, lambda x: x, X)


def test_wrong_dtype():
    with pytest.raises(AssertionError, match="dtype: got float32, needed float64"):
        assert_same(lambda x: x.astype(ost.float32), lambda x: x, X)


def test_wrong_shape():
    with pytest.raises(AssertionError, match=r"shape: got \(1, 3\), needed \(3,\)"):
        assert_same(lambda x: x.sum(0, keepdims=True), lambda x: x.sum(0), X)


def test_wrong_number_of_results():
    with pytest.raises(AssertionError, match="needed tuple"):
        assert_same(lambda x: (x,), lambda x: (x, x), X)


@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_one_of_several_tries_is_enough(wrong):
    tried = []

    @one_of(3)
    def measured(at):
        tried.append(at)
        assert len(tried) > wrong, "it was disturbed"

    if wrong == 3:
        with pytest.raises(AssertionError, match="it was disturbed"):
            measured(at=1)
    else:
        measured(at=1)
    assert len(tried) == min(wrong + 1, 3)


def test_not_an_array():
    with pytest.raises(AssertionError, match="needed an Array"):
        assert_same(lambda x: np.asarray(x), lambda x: x, X)


def test_wrong_when_compiled():
    calls = []

    def second_is_wrong(x):
        calls.append(x)
        return x if len(calls) == 1 else x + 1

    with pytest.raises(AssertionError, match="compiled"):
        assert_same(second_is_wrong, lambda x: x, X)


def test_wrong_in_a_layout():
    def wrong_for_three(x):
        return x + (ost.session().workers == 3)

    with pytest.raises(AssertionError, match=r"mesh \(3,\), split \(0,\)"):
        assert_same(wrong_for_three, lambda x: x, X)


def test_changed_input():
    def scribble(x):
        ost.evaluate(x)
        for part in ost.session().hold_array(x).parts:
            part[:1, :1] = 7
        return x * 0

    with pytest.raises(AssertionError, match="changed its input"):
        assert_same(scribble, lambda x: x * 0, X)


def test_results_without_inputs_are_made_in_parts():
    seen = []

    def record():
        seen.append(ost.session().workers)
        return ost.zeros((5, 2))

    assert_same(record, lambda: np.zeros((5, 2)))
    assert seen.count(3) > 2


def test_splits():
    assert ways([X], (3,), 5) == [(0,), (1,), (None,)]
    assert len(ways([X, X, X], (2, 2), 4)) == 4
    assert ways([np.float64(1)], (2, 2), 4) == [(None,)]


def test_sessions_are_kept_and_put_back():
    before = ost.session()
    with on(3) as first:
        assert ost.session() is first
    with on(3) as second:
        assert first is second
    assert ost.session() is before


def test_files_that_took_long_are_there():
    here = Path(__file__).parent
    files = {name.partition("::")[0] for name in seconds.recorded()}
    assert [path for path in sorted(files) if not (here / path).is_file()] == []


def test_the_record_keeps_what_is_long():
    raw = """0.10 tests/a/test_b.py::test_c[1]
0.26 tests/a/test_b.py::test_c[2 or 3]
0.24 tests/a/test_b.py::test_d
2.90 tests/test_e.py::test_f
0.40 tests/test_e.py::test_f
"""
    kept = "3.30 test_e.py\n0.26 a/test_b.py::test_c\n2.90 test_e.py::test_f\n"
    assert seconds.condensed(raw) == kept
    before = {"test_e.py": 9.0, "test_e.py::test_g": 9.0, "gone.py": 9.0}  # timed anew, and no more
    assert seconds.condensed(raw, before) == kept
    assert seconds.condensed(raw, before | {"test_site.py": 4.0}) == f"4.00 test_site.py\n{kept}"


def test_a_quick_run_starts_no_process_and_writes_no_file(request):
    here = Path(__file__).parent
    assert starts_processes(here / "runtime/test_job.py")
    assert starts_processes(here / "test_toy_ops.py")
    assert not starts_processes(here / "ops/test_ops.py")
    assert not starts_processes(Path(__file__))
    assert is_quick(request.node)
    request.node.fixturenames.append("tmp_path")
    assert not is_quick(request.node)
    request.node.fixturenames.remove("tmp_path")
