"""The passes of a GPU, in order."""

from __future__ import annotations

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.planner.fusion.fold_products import fold_products
from ostinato.planner.fusion.horizontal import fuse_horizontally
from ostinato.planner.fusion.narrow_operands import narrow
from ostinato.planner.fusion.parted_stacks import part_stacks
from ostinato.planner.fusion.remaking import make_again
from ostinato.planner.fusion.sink_transposes import sink_transposes
from ostinato.planner.fusion.whole_windows import close_windows
from ostinato.planner.passes.order import order
from ostinato.planner.plan import Target

from .align_sums import align_sums
from .batch_products import batch_products
from .fuse import fuse
from .point_products import multiply_at_points
from .reduce_products import reduce_products
from .select_ranks import select_ranks
from .split_terms import split_terms
from .spread_numbers import spread_numbers
from .stacked_operands import line_up_stacks
from .take_operands import take_operands
from .take_results import take_results
from .tf32 import use_tf32
from .tiling import join_turns, tile_in_blocks
from .vector_products import sum_rows
from .whole_sums import sum_at_once


def sink_behind_windows(graph: Graph, target: Target) -> Graph:
    """Turn images at the ends of chains of convolutions, where channels are last inside; what else is turned is
    read crosswise by kernels here, which costs no pass over memory."""
    product = any(OPS[n.op].product is not None and OPS[n.op].run.placed for n in graph.nodes)
    return sink_transposes(graph, target) if product else graph


def make_again_apart(graph: Graph, target: Target) -> Graph:
    """Make differences from means again where slopes of norms read them."""
    return make_again(graph, target, apart=True)


PASSES = (
    close_windows,
    fold_products,
    batch_products,
    select_ranks,
    split_terms,
    sum_rows,
    spread_numbers,
    align_sums,
    sum_at_once,
    narrow,
    part_stacks,
    use_tf32,
    reduce_products,
    sink_behind_windows,
    multiply_at_points,
    line_up_stacks,
    join_turns,
    take_operands,
    make_again_apart,
    fuse,
    take_results,
    tile_in_blocks,
    fuse_horizontally,
    order,
)
FUSE = fuse  # makes kernels that have several ways, of which timing takes one
