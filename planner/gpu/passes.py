"""The passes of a GPU, in order."""

from __future__ import annotations

from ostinato.planner.fusion.fold_products import fold_products
from ostinato.planner.fusion.horizontal import fuse_horizontally
from ostinato.planner.fusion.narrow_operands import narrow
from ostinato.planner.fusion.parted_stacks import part_stacks
from ostinato.planner.fusion.whole_windows import close_windows
from ostinato.planner.passes.order import order

from .batch_products import batch_products
from .fuse import fuse
from .split_terms import split_terms
from .tf32 import use_tf32

PASSES = (
    close_windows,
    fold_products,
    batch_products,
    split_terms,
    narrow,
    part_stacks,
    use_tf32,
    fuse,
    fuse_horizontally,
    order,
)
FUSE = fuse  # makes kernels that have several ways, of which timing takes one
