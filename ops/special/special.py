"""Special functions, by SciPy's names (`scipy.special`): `ost.special`."""

from typing import TYPE_CHECKING

from ..core.spelling import missing
from .composed_functions import *
from .composed_functions import __all__ as _more
from .special_functions import *
from .special_functions import __all__ as _functions

__all__ = sorted([*_functions, *_more])


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("special")
