"""The vocabulary: Spec, Layout, Node, Graph, Array, and every operation in one block of one
file.
"""

from . import (  # noqa: F401  (registers the operations)
    aliases,
    arithmetic,
    array_function,
    assigning,
    bits,
    boxes,
    callback,
    casts,
    collective,
    comparisons,
    concatenation,
    contraction,
    control,
    counting,
    creation,
    cumulative,
    distances,
    distributions,
    draws,
    elementary,
    elementwise,
    fft,
    flow,
    gradient,
    grids,
    histograms,
    indexing,
    joining,
    linalg,
    masks,
    moments,
    nn,
    numerical,
    padding,
    polynomials,
    quantiles,
    random,
    reduction,
    reproducible,
    segments,
    selection,
    sets,
    shape,
    slicing,
    sliding,
    solve,
    sorting,
    special,
    statistics,
    subscripts,
    transcendental,
    ufuncs,
    window_functions,
)
from .core import show  # noqa: F401  (how graphs print)
from .core.array import Array
from .core.build import Builder
from .core.graph import Graph, Node
from .core.layout import Layout
from .core.registry import OPS, Op, lookup
from .core.spec import Spec
from .cpu.device import CPU  # noqa: F401  (registers how a CPU does it)
from .gpu.device import Gpu  # noqa: F401

__all__ = ["OPS", "Array", "Builder", "Graph", "Layout", "Node", "Op", "Spec", "lookup"]
