"""Every error that Ostinato raises on purpose.

    OstinatoError
    ├── ShapeError            (ValueError)     operands whose shapes do not fit
    ├── DTypeError            (TypeError)      an operation that has no meaning for a dtype
    ├── LayoutError           (ValueError)     a split or mesh that does not exist
    ├── BoundsError           (IndexError)     an index outside its axis, a mask of another shape
    ├── ArgumentError         (TypeError, ValueError)  any other argument that cannot be used
    ├── AssignmentError       (TypeError, ValueError)  an assignment that cannot be made
    ├── UnknownOpError        (LookupError)    an operation name that is not registered
    ├── TracedValueError      (TypeError)      a value asked for while a function is being traced
    ├── DataDependentShapeError (TypeError)    a shape that depends on data, while tracing
    ├── GradientError         (TypeError)      a gradient that does not exist
    ├── DonatedError          (RuntimeError)   use of an array that was given away
    ├── MemoryLimitError      (MemoryError)    a plan that needs more than it may, or than there is
    ├── NaNError              (FloatingPointError)  a NaN, with the operation that made it
    ├── PlanFileError         (ValueError)     a plan file that cannot be trusted
    ├── DataFileError         (OSError)        a data file that cannot be read
    ├── SampleError           (RuntimeError)   a sample that a pipe could not make
    ├── ExecutionError        (RuntimeError)   an operation that failed while a plan ran
    │   └── LinAlgError       (numpy.linalg.LinAlgError)  a matrix that has no such factors
    ├── StaleResultError      (RuntimeError)   a hit that another trace does not confirm
    ├── CommunicatorError     (RuntimeError)   workers that lost each other
    └── SessionError          (RuntimeError)   no session, or one that was closed

    StaleWarning (UserWarning): something that a compiled function reads and that cannot be watched
    AssignmentWarning (UserWarning): an assignment that NumPy would have written through to another array
    TraceWarning (UserWarning): a trace that is long, or is made for each value, and need not be
    PrecisionWarning (UserWarning): results that were less exact than precision="auto" was to keep

A message is one sentence in four parts: what (the operation and the user's own line), got, needed,
do this."""

from __future__ import annotations

import numpy as np


def __dir__() -> list[str]:
    return sorted(n for n, x in globals().items() if isinstance(x, type))


class OstinatoError(Exception):
    """Base of all errors raised on purpose."""

    line: str = ""

    @classmethod
    def because(
        cls, what: str, *, got: str = "", needed: str = "", do: str = "", line: str = ""
    ) -> OstinatoError:
        """The error whose message is put together from its four parts."""
        text = f"{what} ({line})" if line else what
        if got:
            text += f": got {got}"
        if needed:
            text += f"; needed {needed}"
        if do:
            text += f"; {do}"
        error = cls(text + ("" if text.endswith((".", "?")) else "."))
        error.line = line
        return error


class ShapeError(OstinatoError, ValueError):
    """Operands whose shapes do not fit."""


class DTypeError(OstinatoError, TypeError):
    """An operation that has no meaning for a dtype."""


class LayoutError(OstinatoError, ValueError):
    """A split or mesh that does not exist."""


class BoundsError(OstinatoError, IndexError):
    """An index outside its axis."""


class ArgumentError(OstinatoError, TypeError, ValueError):
    """Any other argument that cannot be used."""


class AssignmentError(OstinatoError, TypeError, ValueError):
    """An assignment to an array that cannot be assigned to, or of what it cannot become."""


class UnknownOpError(OstinatoError, LookupError):
    """An operation name that is not registered."""


class TracedValueError(OstinatoError, TypeError):
    """A value that was asked for while a function is being traced."""


class DataDependentShapeError(OstinatoError, TypeError):
    """A shape that depends on data, asked for while a function is being traced."""


class GradientError(OstinatoError, TypeError):
    """A gradient that does not exist."""


class DonatedError(OstinatoError, RuntimeError):
    """Use of an array whose memory was given away."""


class MemoryLimitError(OstinatoError, MemoryError):
    """A plan that needs more memory per worker than it may use, or than there is."""


class NaNError(OstinatoError, FloatingPointError):
    """A NaN appeared; the message names the first operation that made it."""


class PlanFileError(OstinatoError, ValueError):
    """A plan file that is damaged, foreign, too new, or hostile."""


class DataFileError(OstinatoError, OSError):
    """A data file that is missing, damaged, of an unknown kind, or changed while it was in use."""


class SampleError(OstinatoError, RuntimeError):
    """A sample that a pipe could not make; the message names it, the stage and the user's line."""


class ExecutionError(OstinatoError, RuntimeError):
    """An operation failed while a plan ran."""


class LinAlgError(ExecutionError, np.linalg.LinAlgError):
    """A matrix that is singular, not positive definite, or does not converge; found when it runs."""


class StaleResultError(OstinatoError, RuntimeError):
    """A compiled function's hit is not what another trace gives (OSTINATO_CHECK_STALE)."""


class StaleWarning(UserWarning):
    """A compiled function reads something that cannot be watched, or that changes with each call."""


class AssignmentWarning(UserWarning):
    """An assignment to what was taken from another array by indexing, which does not change that one."""


class TraceWarning(UserWarning):
    """A trace records iterations of a Python loop one by one, thousands, or is made for each new value."""


class PrecisionWarning(UserWarning):
    """A call of a function with `precision="auto"` gave results beyond its tolerance."""


class CommunicatorError(OstinatoError, RuntimeError):
    """Workers that lost each other."""


class SessionError(OstinatoError, RuntimeError):
    """No session, or one that was closed."""
