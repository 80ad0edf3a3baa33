"""The passes of a CPU, in order."""

from __future__ import annotations

from ostinato.planner.fusion.fold_products import fold_products
from ostinato.planner.fusion.horizontal import fuse_horizontally
from ostinato.planner.fusion.narrow_operands import narrow
from ostinato.planner.fusion.parted_stacks import part_stacks
from ostinato.planner.fusion.remaking import make_again
from ostinato.planner.fusion.sink_transposes import sink_transposes
from ostinato.planner.fusion.whole_windows import close_windows
from ostinato.planner.passes.interior import split_interiors
from ostinato.planner.passes.order import order

from .behind_products import take_epilogues
from .fuse import LARGER, fuse
from .loop_kernels import make_loop_kernels
from .prepack import mark_prepacked
from .slices import slice_first
from .symmetric import halve
from .tiling import tile_in_cache

PASSES = (
    close_windows,
    fold_products,
    narrow,
    part_stacks,
    slice_first,
    sink_transposes,
    split_interiors,
    make_loop_kernels,
    take_epilogues,
    make_again,
    fuse,
    tile_in_cache,
    fuse_horizontally,
    order,
    halve,
    mark_prepacked,
)
FUSE = fuse  # makes kernels that have several ways, of which timing takes one
NEED_ROOM = (halve, split_interiors)  # what is left out where memory is short
CAN_COME_APART = LARGER
CACHE = 1 << 22  # bytes of a turn that stay in cache until they are read
