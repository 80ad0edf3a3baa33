"""What is refused: one sentence that says what, at the user's own line, what was got, what was
needed, and what to do.
"""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, BoundsError, DTypeError, LayoutError, ShapeError
from tests.helpers import on

HERE = f"'{settings.device}'"

A = ost.ones((2, 3))
WRONG = [
    (lambda: A + ost.ones(2), ShapeError, r"add \(.*got \(2, 3\) and \(2,\); needed shapes that"),
    (lambda: A @ A, ShapeError, r"float64\[2,3\] @ float64\[2,3\]; needed as many columns .*\(3\)"),
    (lambda: A @ 2, ShapeError, "matmul.*needed at least one axis each; use [*]"),
    (lambda: ost.sqrt(ost.asarray(["a"])), DTypeError, "asarray.*dtype <U1"),
    (lambda: ost.floor(A * 1j), DTypeError, "floor.*got complex128; needed a dtype for which"),
    (lambda: A.astype("int8") ** -1, ArgumentError, "pow.*an integer array to the power -1"),
    (lambda: (A * 1j).astype(float), DTypeError, r"astype.*complex128 to float64.*ost.real\(x\)"),
    (
        lambda: A.sum(2),
        BoundsError,
        "sum.*axis 2 of an array with 2 axes; needed an axis from -2 to 1",
    ),
    (lambda: A.sum((0, 0)), ArgumentError, r"sum.*axis \(0, 0\); needed each axis once"),
    (lambda: ost.max(ost.ones((0, 2)), axis=0), ShapeError, r"max.*nothing is the largest"),
    (lambda: ost.argmin(ost.ones(0)), ShapeError, "argmin.*at least one element"),
    (lambda: ost.cumulative_sum(A), ArgumentError, "cumulative_sum.*and no axis; needed an axis"),
    (lambda: A.sum(1.0), ArgumentError, "sum.*got 1.0; needed a whole number"),
    (lambda: A.reshape(2.5), ArgumentError, "reshape.*got 2.5; needed a whole number"),
    (lambda: A.reshape("6"), ArgumentError, "reshape.*got '6'; needed a whole number"),
    (lambda: ost.zeros((2, None)), ArgumentError, "shape.*got None; needed a whole number"),
    (lambda: ost.linspace(0, 1, 2.5), ArgumentError, "linspace.*a whole number of 0 or more"),
    (lambda: ost.one_hot(A[0].astype(int), -1), ArgumentError, "one_hot.*got -1; needed a whole"),
    (lambda: ost.topk(A, 1.5), ArgumentError, "topk.*got 1.5; needed a whole number"),
    (lambda: ost.nonzero(A, size=-1), ArgumentError, "nonzero.*a whole number of 0 or more"),
    (lambda: ost.unique_values(A, size=-1), ArgumentError, "unique_values.*of 0 or more"),
    (
        lambda: ost.random.integers(0, 1.5),
        ArgumentError,
        "integers.*got 1.5; needed a whole number",
    ),
    (lambda: ost.asarray([1.0], split=3), LayoutError, "split=3.*an array with 1 axes"),
    (lambda: ost.from_dlpack(3), ArgumentError, "from_dlpack.*got a int; needed an array"),
    (lambda: ost.linalg.vector_norm(A, ord="x"), ArgumentError, "vector_norm.*ord='x'; needed a"),
    (lambda: float(A[0, 0] * 1j), DTypeError, r"float\(\).*complex128; needed a real dtype"),
    (lambda: A.reshape(4), ShapeError, r"reshape.*\(2, 3\) to \(4,\); needed a shape of 6"),
    (lambda: A.reshape(-1, -1), ShapeError, "reshape"),
    (lambda: ost.squeeze(A, 0), ShapeError, r"squeeze.*axis 0 of shape \(2, 3\); needed axes of"),
    (lambda: ost.permute_dims(A, (0, 0)), ArgumentError, "permute_dims.*each of 0 to 1 once"),
    (lambda: ost.matrix_transpose(ost.ones(3)), ShapeError, "matrix_transpose.*two axes"),
    (lambda: ost.moveaxis(A, (0, 1), 0), ArgumentError, "moveaxis.*as many places as axes"),
    (lambda: ost.broadcast_to(A, (3, 3)), ShapeError, "broadcast_to"),
    (lambda: ost.broadcast_to(A, (3,)), ShapeError, r"broadcast_to.*\(2, 3\) to \(3,\)"),
    (lambda: ost.concat([A, ost.ones((2, 4))]), ShapeError, "concat.*differ in axis 0 only"),
    (lambda: ost.concat([]), ArgumentError, "concat.*got no arrays"),
    (lambda: ost.stack([]), ShapeError, "stack.*got no arrays"),
    (lambda: ost.stack([A, A[0]]), ShapeError, "stack.*needed arrays of one shape"),
    (lambda: ost.pad(A, -1), ArgumentError, "pad.*got widths -1"),
    (lambda: ost.pad(A, (1, 2, 3)), ArgumentError, r"pad.*widths \(1, 2, 3\) for 2 axes"),
    (lambda: ost.pad(A, 1, mode="up"), ArgumentError, "pad.*mode 'up'; needed 'constant'"),
    (lambda: ost.pad(ost.ones(0), 1, mode="edge"), ShapeError, "pad.*an axis of 0 elements"),
    (lambda: ost.tile(A, -1), ArgumentError, "tile.*numbers of 0 or more"),
    (lambda: ost.repeat(A, -1), ArgumentError, "repeat.*-1 times; needed 0 or more"),
    (lambda: ost.repeat(A, [1, 2], axis=1), ShapeError, r"repeat.*shape \(2,\).*or 3 of them"),
    (lambda: ost.repeat(A, 1.5), ShapeError, "repeat.*float64; needed one whole number"),
    (lambda: ost.roll(A, (1, 2, 3), axis=(0, 1)), ArgumentError, "roll.*one shift per axis"),
    (lambda: ost.tril(ost.ones(3)), ShapeError, "tril.*two axes or more"),
    (lambda: ost.einsum("ij,jk", A), ArgumentError, "einsum.*'ij,jk' for 1 operands"),
    (lambda: ost.einsum("ij->ik", A), ArgumentError, "einsum.*output 'ik'; needed labels of"),
    (lambda: ost.einsum("i", A), ShapeError, r"einsum.*shape \(2, 3\) for 'i'; needed one letter"),
    (lambda: ost.einsum("ij,ij", A, A.T), ShapeError, r"einsum\('ij,ij'\).*one extent for 'i'"),
    (lambda: ost.einsum("ii", A), ShapeError, r"einsum.*\(2, 3\); needed one extent for 'i'"),
    (lambda: ost.einsum("ij,jk", A, A), ShapeError, "einsum.*needed one extent for 'j'"),
    (lambda: ost.einsum("i1", A), ArgumentError, "einsum.*needed letters"),
    (lambda: ost.tensordot(A, A, axes=1), ShapeError, "tensordot.*pairs of axes of one extent"),
    (lambda: ost.tensordot(A, A, axes=3), ArgumentError, "tensordot.*axes=3; needed 0 to 2"),
    (lambda: ost.tensordot(A, A, axes=1.0), ArgumentError, "tensordot.*1.0; needed a whole number"),
    (
        lambda: ost.tensordot(A, A, axes=((0, 1), (0, 0))),
        ArgumentError,
        "tensordot.*each axis once",
    ),
    (lambda: ost.einsum(A, A), ArgumentError, "einsum.*needed text such as 'ij,jk->ik'"),
    (lambda: ost.diagonal(A, offset=0.5), ArgumentError, "diagonal.*0.5; needed a whole number"),
    (lambda: ost.vecdot(A, A.T), ShapeError, "vecdot"),
    (lambda: ost.vecdot(A, ost.ones(2)), ShapeError, "vecdot"),
    (lambda: ost.diagonal(ost.ones(3)), ShapeError, "diagonal.*two axes"),
    (lambda: ost.topk(A, 4), ShapeError, "topk.*k=4; needed 0 to 3"),
    (lambda: ost.searchsorted(A, A), ShapeError, "searchsorted.*needed one axis"),
    (lambda: ost.searchsorted(A[0], A, side="up"), ArgumentError, "side='up'; needed 'left'"),
    (lambda: ost.take_along_axis(A, ost.zeros(2, dtype=int)), ShapeError, "as many axes in both"),
    (lambda: ost.take_along_axis(A, A), DTypeError, "take_along_axis.*needed integers"),
    (
        lambda: ost.take_along_axis(A, ost.zeros((3, 1), dtype=int)),
        ShapeError,
        "alike but for axis",
    ),
    (lambda: ost.zeros(-1), ArgumentError, r"shape.*\(-1,\); needed extents of 0 or more"),
    (lambda: ost.full(2, "a"), DTypeError, "asarray.*<U1"),
    (lambda: ost.full(2, 300, dtype="int8"), DTypeError, "full.*the value 300.*int8 can hold"),
    (lambda: ost.full(2, 1j, dtype="float32"), DTypeError, "full.*the value 1j"),
    (lambda: ost.zeros(2, device="gpu"), ArgumentError, f"full.*device='gpu'; needed {HERE}"),
    (lambda: A.to_device("gpu"), ArgumentError, f"to_device.*'gpu'; needed {HERE}"),
    (lambda: ost.arange(0, 5, 0), ArgumentError, "arange.*step 0"),
    (lambda: ost.arange(0, 300, dtype="uint8"), DTypeError, "arange.*the value 299.*uint8"),
    (lambda: ost.linspace(0, 1, -1), ArgumentError, "linspace.*got -1; needed a whole"),
    (lambda: ost.eye(-1), ArgumentError, "extents of 0 or more"),
    (lambda: ost.meshgrid(A[0], indexing="yx"), ArgumentError, "meshgrid.*'xy' or 'ij'"),
    (lambda: ost.one_hot(A, 3), DTypeError, "one_hot.*integer indices"),
    (lambda: ost.diff(A, n=-1), ArgumentError, "diff.*n=-1"),
    (lambda: ost.clip(A, "a"), DTypeError, "asarray.*<U1"),
    (lambda: ost.unique_values(ost.ones(0), size=2), ShapeError, "unique_values.*no elements"),
    (lambda: len(ost.asarray(1.0)), ArgumentError, r"len\(\).*0-dimensional"),
    (lambda: hash(A), ArgumentError, r"hash\(\)"),
    (lambda: ost.Array(), ArgumentError, r"Array\(\).*ost.asarray"),
    (
        lambda: ost.resplit(A, 2),
        LayoutError,
        r"split=2 \(.*: got an array with 2 axes; needed None, an axis below 2, or",
    ),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run, error, text):
    """One sentence: what, at the user's own line, got, needed, do this."""
    line = run.__code__.co_firstlineno
    with pytest.raises(error, match=text) as caught:
        run()
    message = str(caught.value)
    assert f"test_errors.py:{line})" in message, message
    assert "; needed " in message or "; use " in message, message
    assert "\n" not in message
    assert message.endswith((".", "?"))


def test_the_line_is_the_innermost_of_the_user():
    def helper(x):
        return x @ x

    with pytest.raises(ShapeError) as caught:
        helper(A)
    assert f"test_errors.py:{helper.__code__.co_firstlineno + 1})" in str(caught.value)


def test_the_line_is_kept_until_the_graph_runs():
    """What only running shows is blamed on the line that wrote the operation."""
    for workers in (1, 3):
        with on(workers):
            base, power = ost.asarray([2, 3]), ost.asarray([-1, 2])
            y = base**power
            line = test_the_line_is_kept_until_the_graph_runs.__code__.co_firstlineno + 5
            with pytest.raises(
                ost.errors.ExecutionError, match="negative integer powers"
            ) as caught:
                np.asarray(y + 1)
            assert f"test_errors.py:{line})" in str(caught.value)
            compiled = ost.compile(lambda a, b: (a**b) * 2)
            with pytest.raises(ost.errors.ExecutionError, match=r"pow \(.*test_errors.py:"):
                np.asarray(compiled(base, power))
