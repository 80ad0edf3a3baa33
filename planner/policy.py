"""Policies of precision: in which dtypes a plan keeps, multiplies and adds up what was written.

A policy is plain data; keys and plan files hold its text, which `Precision.from_text` reads again."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ostinato.ops.core.spec import DType, bfloat16, float16, float32, float64, is_float
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

AS_WRITTEN = "as-written"
FLOATS: dict[str, DType] = {"f16": float16, "bf16": bfloat16, "f32": float32, "f64": float64}
# What can be summed in: nobody sums in halves; and sent in.
TF32 = "tf32"  # float32 of which products read 10 bits of mantissa: no dtype, a way to multiply
NAMES = {"compute": (*FLOATS, TF32), "accumulate": ("f32", "f64"), "wire": ("bf16", "f16", "f32")}


@dataclass(frozen=True, slots=True)
class Precision:
    """In which floating dtypes a function computes: "f16", "bf16", "f32", "f64" or "as-written".

    storage: of every floating value: arguments are cast where the function begins, and results back
    to the dtype as written where it ends, so that `y.dtype` says the same inside and outside, and
    states go round with one signature (`y.astype(ost.float64)` inside keeps all digits of a result
    under "f64"). Random numbers are drawn as written. Integers, bools, and what has no such dtype,
    as factorizations of halves, stay as they are; complex numbers are pairs of "f32" or "f64".
    compute: what products read of their operands. Where storage is "as-written", it holds for
    products that are no wider than `accumulate`; others stay. "tf32": what GPUs make of float32, where
    they multiply it much faster; other processors multiply float32.
    accumulate: what products, sums and means add up in, if it is wider: "f32" or "f64".
    wire: what addends are sent in, where workers sum them: "bf16", "f16" or "f32". Each rounds what it
    made, adds what it gets in float32, and a sum that goes back to all is rounded again. It holds for
    sums of more than a few KiB that are no wider than `accumulate` (float32, unless that or "f32" is
    said), not under `numerics="any-workers"`.

    >>> ost.compile(lambda x: x @ x, precision=ost.Precision(compute="bf16", accumulate="f32"))(ost.eye(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float64)
    """

    storage: str = AS_WRITTEN
    compute: str = AS_WRITTEN
    accumulate: str = AS_WRITTEN
    wire: str = AS_WRITTEN

    def __post_init__(self) -> None:
        for f in fields(self):
            given = getattr(self, f.name)
            names = (AS_WRITTEN, *NAMES.get(f.name, FLOATS))
            if type(given) is not str or given not in names:
                needed = " or ".join(map(repr, names))
                got = f"{f.name}={given!r:.60}"
                raise misfit(ArgumentError, "Precision", got=got, needed=needed)
        _, compute, accumulate = self.dtypes
        if (
            compute is not None
            and accumulate is not None
            and compute.itemsize > accumulate.itemsize
        ):
            got = f"compute={self.compute!r} with accumulate={self.accumulate!r}"
            needed = "sums at least as wide as what is multiplied"
            raise misfit(ArgumentError, "Precision", got=got, needed=needed)

    @property
    def dtypes(self) -> tuple[DType | None, DType | None, DType | None]:
        """Return the dtypes of what is kept, read by products, and summed; None for as written.
        What is not said follows from the others."""
        storage, compute, accumulate = (
            FLOATS.get(n) for n in (self.storage, self.compute, self.accumulate)
        )
        compute = compute if compute is not None else storage
        if accumulate is None and compute is not None:
            widest = max(
                (compute, storage if storage is not None else compute), key=lambda d: d.itemsize
            )
            accumulate = widest if widest.itemsize >= 4 else float32
        return storage, compute, accumulate

    @property
    def allows_tf32(self) -> bool:
        """Whether products of float32 may read 10 bits of mantissa."""
        return self.compute == TF32

    @property
    def may_send_narrow(self) -> bool:
        return self.wire != AS_WRITTEN

    def sent(self, dtype: DType) -> DType | None:
        """Return the dtype in which addends of this one are sent, if that is narrower."""
        wire = FLOATS.get(self.wire)
        if wire is None or not is_float(dtype):
            return None
        _, _, accumulate = self.dtypes
        widest = accumulate or (float64 if wire == float32 else float32)
        return wire if wire.itemsize < dtype.itemsize <= widest.itemsize else None

    def __str__(self) -> str:
        names = {d: n for n, d in FLOATS.items()}
        said = Precision.__new__(Precision)  # with what follows said, too
        for f, dtype in zip(fields(self), self.dtypes, strict=False):
            object.__setattr__(said, f.name, AS_WRITTEN if dtype is None else names[dtype])
        object.__setattr__(said, "wire", self.wire)
        if self.allows_tf32:
            object.__setattr__(said, "compute", TF32)
        for name, preset in PRESETS.items():
            if preset == said:
                return name
        words = [f"{f.name}={getattr(said, f.name)}" for f in fields(self)]
        return " ".join(words if self.wire != AS_WRITTEN else words[:-1])

    @staticmethod
    def from_text(text: str) -> Precision:
        """The policy that has this text; ValueError if none has."""
        if text in PRESETS:
            return PRESETS[text]
        words = dict(word.partition("=")[::2] for word in text[:100].split(" "))
        if {*words, "wire"} == {f.name for f in fields(Precision)}:
            try:
                found = Precision(**words)
            except ArgumentError:
                found = Precision()
            if str(found) == text:
                return found
        raise ValueError(f"precision {text[:80]!r}")


PRESETS = {
    AS_WRITTEN: Precision(),
    "f32": Precision("f32", "f32", "f32"),
    "f64": Precision("f64", "f64", "f64"),
    "mixed_bf16": Precision(AS_WRITTEN, "bf16", "f32"),
    "mixed_f16": Precision(AS_WRITTEN, "f16", "f32"),
    "mixed_tf32": Precision(compute=TF32),
}


LETTERS: dict[str, DType | None] = {"-": None, "b": bfloat16, "h": float16, "s": float32}
_CHOSEN = re.compile(
    r"auto tolerance=([0-9.e+-]{1,24}) products=([bhs-]{0,65536})(?: sums=([bhs-]{1,65536}))?"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which products read their operands rounded so that results stay within a tolerance, one letter for
    each product, bodies of loops included: "b" for bfloat16, "h" for float16, "s" for float32, "-" for as
    written. Sums are of float32, or wider. And which sums of workers' addends are sent rounded, one letter
    for each of those in the layouts that were chosen; none if all are sent as they are."""

    tolerance: float
    products: str
    sums: str = ""

    def __str__(self) -> str:
        sums = f" sums={self.sums}" if self.sums else ""
        return f"auto tolerance={self.tolerance!r} products={self.products}{sums}"


@lru_cache(64)
def policy_of(text: str) -> Precision | Chosen:
    """The policy that a plan's text means; ValueError if it means none."""
    found = _CHOSEN.fullmatch(text)
    if found is not None:
        chosen = Chosen(float(found[1]), found[2], found[3] or "")
        if str(chosen) == text:
            return chosen
    return Precision.from_text(text)


def check_precision(who: str, given: Any) -> str:
    """The text of a policy that a user names or gives. What was chosen for one function is of use only
    where there is one."""
    if isinstance(given, Precision):
        return str(given)
    if type(given) is str:
        with contextlib.suppress(ValueError):
            policy = policy_of(given)
            if isinstance(policy, Precision) or who != "connect":
                return str(policy)
    auto = given == "auto"
    needed = " or ".join(map(repr, PRESETS)) + ", or an ost.Precision"
    do = "'auto' looks at what a call is given: use ost.compile(precision='auto')" if auto else ""
    raise misfit(ArgumentError, who, got=f"precision={given!r:.60}", needed=needed, do=do)
