"""Networks: what users call, and the operations behind it."""

from typing import TYPE_CHECKING

from ostinato.ops.core.spelling import missing

from .attending import *
from .attending import __all__ as _attending
from .composed_layers import *
from .composed_layers import __all__ as _functions
from .convolution import *
from .convolution import __all__ as _convolution
from .layers import *
from .layers import __all__ as _layers
from .layers import initializers as initializers
from .losses import *
from .losses import __all__ as _losses
from .normalization import *
from .normalization import __all__ as _norms
from .pooling import *
from .pooling import __all__ as _pooling
from .recurrence import *
from .recurrence import __all__ as _recurrence
from .upsampling import *
from .upsampling import __all__ as _upsampling

__all__ = [
    *_attending,
    *_convolution,
    *_functions,
    *_layers,
    *_losses,
    *_norms,
    *_pooling,
    *_recurrence,
    *_upsampling,
    "initializers",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("nn")
