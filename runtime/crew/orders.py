"""What the master says to the workers: a fixed head, handles, and text.

    length u32 | kind u8 | epoch u8 | - | operands u32 | freed u32 | number u64 | plan 16 bytes | first u64
    operands' handles u64 ... | freed handles u64 ... | text (JSON, UTF-8) ...

To run a plan takes 48 bytes and 8 for each handle, whatever the plan contains. Results are numbered
from `first` on. Nothing here is ever unpickled; what does not fit is `Malformed`."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ostinato.ops.core.encode import Malformed

from ostinato import errors
from ostinato.errors import ExecutionError, OstinatoError

_FORM = "<IBBxxIIQ16sQ"
_FACTS = 8  # in a head
HEAD = struct.Struct(_FORM)
LENGTH = struct.Struct("<I")
LARGEST = 1 << 30  # bytes of an order
NOBODY = bytes(16)
MOST_SAID = 1 << 16  # letters of an error

KINDS = (
    "run",  # a plan over operands
    "load",  # a plan, from now on known by its id
    "forget",  # a plan
    "put",  # a value that follows becomes an operand
    "attach",  # an array that stays in its file becomes one
    "target",  # the number of a file that plans write to becomes one
    "read",  # an array in a file becomes one in memory
    "adopt",  # chunks that Dask keeps on the workers become an operand
    "get",  # an operand's parts come together at the lead
    "write",  # an operand's parts go into a file
    "describe",  # a pipe of samples, from now on known by a handle; whether everybody can open it
    "feed",  # an epoch of it begins
    "batch",  # its next batch becomes operands
    "wait",  # until all have done what was ordered before
    "ask",  # something about each worker
    "recover",  # begin anew after a failure
    "reset",  # forget all operands and plans
    "end",  # of this session: serve no longer
)
RUN, WAIT = KINDS.index("run"), KINDS.index("wait")


LEAD = 0  # the rank of who gives orders


class Order(NamedTuple):
    kind: str
    number: int  # of the orders since the beginning; workers compare it with their own count
    epoch: int = 0  # failures so far, modulo 256
    plan: bytes = NOBODY
    operands: Sequence[int] = ()
    freed: Sequence[int] = ()
    first: int = 0  # handle of the first result
    text: Any = None

    def pack(self) -> bytes:
        said = b"" if self.text is None else json.dumps(self.text, separators=(",", ":")).encode()
        return pack(
            KINDS.index(self.kind),
            self.number,
            self.epoch,
            self.plan,
            self.operands,
            self.freed,
            self.first,
            said,
        )


def pack(
    kind: int,
    number: int,
    epoch: int,
    plan: bytes,
    operands: Sequence[int],
    freed: Sequence[int],
    first: int,
    text: bytes = b"",
) -> bytes:
    form, facts = laid_out(kind, number, epoch, plan, operands, freed, first, len(text))
    said = form.pack(*facts)
    return said + text if text else said


def laid_out(
    kind: int,
    number: int,
    epoch: int,
    plan: bytes,
    operands: Sequence[int],
    freed: Sequence[int],
    first: int,
    text: int = 0,
) -> tuple[struct.Struct, tuple[Any, ...]]:
    """The form of an order in front of so many bytes of text, and what goes into it."""
    n, m = len(operands), len(freed)
    form = _with_handles(n + m)
    length = form.size + text
    return form, (length, kind, epoch, n, m, number, plan, first, *operands, *freed)


@functools.lru_cache(64)
def _with_handles(count: int) -> struct.Struct:
    return struct.Struct(f"{_FORM}{count}Q")


def unpack(data: bytes) -> Order:
    """The order that these bytes are, or Malformed."""
    if len(data) < HEAD.size:
        raise Malformed(f"an order of {len(data)} bytes")
    length, kind, epoch, n, m, number, plan, first = HEAD.unpack_from(data)
    if not length == len(data) <= LARGEST:
        raise Malformed(f"an order of {len(data)} bytes that claims {length}")
    if kind >= len(KINDS):
        raise Malformed(f"an order of kind {kind}")
    end = HEAD.size + 8 * (n + m)
    if end > length:
        raise Malformed(f"an order with {n + m} handles in {length} bytes")
    handles = _with_handles(n + m).unpack_from(data)[_FACTS:]
    text = None
    if end < length:
        try:
            text = json.loads(data[end:])
        except (ValueError, RecursionError) as error:
            raise Malformed(f"an order whose text is none ({error})") from None
    return Order(KINDS[kind], number, epoch, plan, handles[:n], handles[n:], first, text)


def is_quiet(order: Order) -> bool:
    """Whether who gives it waits for no answer."""
    return order.kind == "run" or (order.kind == "batch" and order.text[1:] == [False, False])


def length_of(head: bytes | bytearray) -> int:
    """How long an order is, by its first bytes."""
    length = LENGTH.unpack_from(head)[0] if len(head) >= HEAD.size else 0
    if not HEAD.size <= length <= LARGEST:
        raise Malformed(f"an order of {len(head)} bytes that claims {length}")
    return int(length)


# -- errors --------------------------------------------------------------------------------
def described(error: BaseException) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "text": str(error)[:MOST_SAID],
        "line": getattr(error, "line", ""),
    }


def rebuilt(found: dict[str, Any], name: str) -> OstinatoError:
    """A worker's error, as one of ours."""
    kind = getattr(errors, str(found["kind"]), None)
    if isinstance(kind, type) and issubclass(kind, OstinatoError):
        made = kind(f"{found['text']}")
    else:
        after = f", in order {found['number']}" if "number" in found else ""
        made = ExecutionError(f"{name}{after}: {found['kind']}: {found['text']}")
    made.line = str(found["line"])
    return made
