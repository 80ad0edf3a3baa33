"""The passes before layouts are chosen: what is computed, and what is read from files."""

from __future__ import annotations

from ostinato.ops.core.graph import Graph

from .passes.far_pairs import multiply_differences
from .passes.file_blocks import work_in_blocks
from .passes.masked_blocks import skip_masked
from .passes.numerics import fix_order
from .passes.precision import mix_precision
from .passes.reads import read_files
from .passes.simplify import simplify
from .passes.slice_sums import slide_filters
from .plan import Target

PREPARING = (
    simplify,
    mix_precision,
    fix_order,
    multiply_differences,
    slide_filters,
    skip_masked,
    read_files,
    work_in_blocks,
)


def prepared(graph: Graph, target: Target) -> Graph:
    """The graph for which layouts are chosen."""
    for each in PREPARING:
        graph = each(graph, target)
    return graph
