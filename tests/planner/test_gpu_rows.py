"""Kernels and bytes of programs on a GPU: none may become more. Nothing is computed.

What is needed at least is what a program takes and gives; a row that is far from it says in what."""

from __future__ import annotations

from typing import Any

import pytest
from ostinato.planner.prediction import runs, work_of

import ostinato as ost
from benchmarks import gpu_rows
from benchmarks.libraries import Ostinato
from tests.fake_device import KERNELS

F32 = "float32"
Row = tuple[list[tuple[Any, ...]], int, float]
ROWS: dict[str, Row] = {  # operands; kernels, and times what is needed that they move
    "stencil2d": ([(4096, 4096)], 2, 2.1),  # a kernel for four steps, which reads and writes all
    "life": ([(4096, 4096, "int32")], 2, 2.1),  # as stencil2d
    "allpairs": ([(4096, 3), (4096,)], 1, 1.5),  # bodies are read along two indices
    "regression": ([(200_000, 64), (64, 16), (200_000, 16)], 4, 2.7),  # products are the library's
    "escape": ([(2048, 2048)] * 2, 1, 1.01),
    "paths": ([(20_000, 512)], 1, 1.01),
    "covariance": ([(1_000_000, 16)], 3, 3.1),  # means, product in parts of differences
    "zscores": ([(1_000_000, 16)], 2, 1.6),
    "bags": ([(100_000, 64), (20_000, 32, "int64")], 2, 1.2),
    "lstm": ([(16, 64, 256), (256, 1024), (256, 1024)], 18, 9.9),  # a product with its gates a step
    "complexpoly": ([(4_000_000, "complex64")], 1, 1.01),
    "lags": ([(4_000_000,)], 3, 2.01),  # a mean, and all lags
    "sortcolumns": ([(4096, 4096)], 1, 1.01),
    "tallqr": ([(400_000, 32), (400_000,)], 3, 3.0),
    "sinkhorn": (
        [(4096, 4096)],
        33,
        12.1,
    ),  # a sum of products, and a division, each half of a round; rows times `u` are not written
    "gradients": ([(4096, 4096), (4096,)], 49, 16.1),  # a matrix a step
    "heads": ([(16, 2048, 64)] * 3, 3, 33.1),  # all scores are in memory
    "spectrum": ([(4_194_304,)], 2, 3.01),
    "counts": ([(8_000_000, "int64")], 1, 1.01),
    "walk": ([(8_000_000,)], 3, 4.01),  # a running sum, its mean, and what is far from it
    "small": ([(200_000, 8, 8)], 3, 7.1),  # a library call a product
    "edges": ([(4096, 4096)], 1, 1.01),
    "waves": ([(256, 256, 256)], 7, 10.6),  # two states are read, and one written, each step
    "layernorm": ([(32_768, 768), (768,), (768,)], 1, 1.01),
    "medians": ([(200_001, 16)], 2, 1.01),
    "mixture": ([(2_000_000, 4), (8, 4), (8, 4)], 2, 1.01),
}


@pytest.mark.parametrize("row", gpu_rows.ROWS, ids=lambda row: row[0].name)
def test_kernels_and_bytes_do_not_become_more(row: Any) -> None:
    shapes, kernels, times = ROWS[row[0].name]
    given = [
        ost.spec(s[:-1], s[-1]) if isinstance(s[-1], str) else ost.spec(s, F32) for s in shapes
    ]
    function = row[1]
    plan = ost.plan(lambda *x: function(Ostinato(ost), *x), *given, machine="h100", device=KERNELS)
    program = plan.program
    graph = program.graph
    found = [node for k, node in enumerate(graph.nodes) if runs(program, k)]
    moved = sum(work_of(graph, node).moved for node in found)
    needed = sum(s.nbytes for s in (*graph.inputs, *graph.out_specs))
    assert len(found) <= kernels, [node.op for node in found]
    assert moved <= times * needed, f"{moved / needed:.2f} times what is needed"


def test_each_row_is_pinned() -> None:
    assert list(ROWS) == [workload.name for workload, _, _ in gpu_rows.ROWS]
