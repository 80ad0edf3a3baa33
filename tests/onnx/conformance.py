"""ONNX's own backend suite, run by our importer."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from onnx.backend.base import Backend, BackendRep

import ostinato as ost


class Prepared(BackendRep):
    def __init__(self, model: Any) -> None:
        self.function = ost.from_onnx(model)

    def run(self, inputs: Any, **_: Any) -> Any:
        made = self.function(*inputs)
        return [plain(x) for x in (made if isinstance(made, tuple) else (made,))]


def plain(x: Any) -> Any:
    return [plain(v) for v in x] if isinstance(x, list) else None if x is None else np.asarray(x)


class OurBackend(Backend):
    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> Prepared:
        return Prepared(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


@cache
def cases() -> dict[str, tuple[Any, str]]:
    """By name the class and method of each test for a CPU."""
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows while it makes its data
        made = BackendTest(OurBackend, __name__).include("_cpu$").test_cases
    return {
        name: (case, name)
        for case in made.values()
        for name in dir(case)
        if name.startswith("test_") and name.endswith("_cpu")
    }


def failures(names: Iterable[str]) -> dict[str, str]:
    """Those of the named tests that do not pass, each with the end of what it says."""
    found = {}
    for name in names:
        case, method = cases()[name]
        result = unittest.TestResult()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case(method).run(result)
        for _, text in (*result.failures, *result.errors):
            found[name] = text.strip().splitlines()[-1][:300]
        for _, reason in result.skipped:
            found[name] = f"skipped: {reason}"
    return found


REAL = {
    f"test_{name}_cpu"
    for name in (
        "bvlc_alexnet",
        "densenet121",
        "inception_v1",
        "inception_v2",
        "resnet50",
        "shufflenet",
        "squeezenet",
        "vgg19",
        "zfnet512",
    )
}
