"""Linear algebra: what users call, and the factorizations behind it."""

from . import factorizations, spectral  # noqa: F401  (registers the operations)
from .functions import *
from .functions import __all__ as __all__
