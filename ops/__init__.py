"""The vocabulary: Spec, Layout, Node, Graph, Array, and every operation in one block of one
file.
"""

from . import fft, linalg, nn, solve  # noqa: F401  (registers the operations)
from .array import (  # noqa: F401  (registers the operations)
    aliases,
    arithmetic,
    array_function,
    assigning,
    bits,
    boxes,
    casts,
    comparisons,
    concatenation,
    contraction,
    creation,
    cumulative,
    distances,
    elementary,
    elementwise,
    grids,
    histograms,
    indexing,
    joining,
    masks,
    moments,
    numerical,
    padding,
    polynomials,
    quantiles,
    reduction,
    segments,
    selection,
    sets,
    shape,
    slicing,
    sliding,
    sorting,
    statistics,
    subscripts,
    transcendental,
    ufuncs,
    window_functions,
)
from .autodiff import gradient  # noqa: F401  (registers the operations)
from .core import show  # noqa: F401  (how graphs print)
from .core.array import Array
from .core.build import Builder
from .core.graph import Graph, Node
from .core.layout import Layout
from .core.registry import OPS, Op, lookup
from .core.spec import Spec
from .cpu.cpu_device import CPU  # noqa: F401  (registers how a CPU does it)
from .flow import (  # noqa: F401  (registers the operations)
    branches,
    callback,
    composed_flow,
    repeat_scan,
    while_loops,
)
from .gpu.gpu_device import Gpu  # noqa: F401
from .planned import collective, element_ids, offloaded, reproducible  # noqa: F401  (registers the operations)
from .random import distributions, draws, random  # noqa: F401  (registers the operations)
from .special import special  # noqa: F401  (registers the operations)

__all__ = ["OPS", "Array", "Builder", "Graph", "Layout", "Node", "Op", "Spec", "lookup"]
