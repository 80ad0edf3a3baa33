"""Linear algebra: what users call, and the factorizations behind it."""

from typing import TYPE_CHECKING

from ostinato.ops.core.spelling import missing

from . import factorizations, spectral  # noqa: F401  (registers the operations)
from .banded import *
from .banded import __all__ as _banded
from .functions import *
from .functions import __all__ as _functions
from .matrix_functions import *
from .matrix_functions import __all__ as _of_matrices
from .structured import *
from .structured import __all__ as _structured

__all__ = [*_banded, *_functions, *_of_matrices, *_structured]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("linalg")
