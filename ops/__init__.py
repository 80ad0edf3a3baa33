"""The vocabulary: Spec, Layout, Node, Graph, Array, and every operation in one block of one
file.
"""

from . import (  # noqa: F401  (registers the operations)
    collective,
    contraction,
    control,
    creation,
    distances,
    elementwise,
    factor,
    fixed,
    fused,
    gradient,
    gram,
    indexing,
    linalg,
    nn,
    numpy_calls,
    random,
    reduction,
    shape,
    sorting,
    spectral,
)
from .array import Array
from .graph import Builder, Graph, Node
from .layout import Layout
from .registry import OPS, Op, lookup
from .spec import Spec

__all__ = ["OPS", "Array", "Builder", "Graph", "Layout", "Node", "Op", "Spec", "lookup"]
