"""Layers: pytrees that are networks and their parts."""

from . import initializers as initializers
from .attention_layers import *
from .attention_layers import __all__ as _attention
from .containers import *
from .containers import __all__ as _containers
from .conv_layers import *
from .conv_layers import __all__ as _convs
from .dense import *
from .dense import __all__ as _dense
from .layer import *
from .layer import __all__ as _layer
from .norm_layers import *
from .norm_layers import __all__ as _norms
from .summary import *
from .summary import __all__ as _summary
from .weights import *
from .weights import __all__ as _weights

__all__ = [
    *_attention,
    *_layer,
    *_containers,
    *_convs,
    *_dense,
    *_norms,
    *_summary,
    *_weights,
]
