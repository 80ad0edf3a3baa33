"""ResNet-50 from the package onnx as a function: its results, its speed, and a fine-tuned last layer.

    python examples/onnx_resnet.py

The file has the network with weights that are all alike, and the results that they give."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost


def main(repeats: int = 5) -> tuple[float, list[float]]:
    import onnx
    from onnx import numpy_helper

    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    model = ost.from_onnx(folder / "light_resnet50.onnx")
    print(model)
    (name,), shape = model.inputs, (1, 3, 224, 224)
    count = int(np.prod(shape))
    image = (np.arange(count).reshape(shape) / count).astype("float32")
    wanted = numpy_helper.to_array(onnx.load_tensor(folder / "light_resnet50_output_0.pb"))
    error = float(np.abs(np.asarray(model(image)) - wanted).max())
    print(f"{name}: {shape} -> {wanted.shape}, as ONNX has it to {error:.1e}")
    began = time.perf_counter()
    for _ in range(repeats):
        np.asarray(model(image))
    print(f"{(time.perf_counter() - began) / repeats * 1e3:.0f} ms an image")

    head = ost.zeros(
        wanted.shape[1:], dtype="float32"
    )  # numbers added to the logarithms of classes
    label = np.array([7])

    def loss(head: Any, x: Any) -> Any:
        return ost.nn.cross_entropy(ost.log(model.apply(model.parameters, x)) + head, label)

    step = ost.compile(ost.value_and_grad(loss))
    losses = []
    for _ in range(3):
        value, slope = step(head, image)
        losses.append(float(value))
        head = head - 100.0 * slope
    print("loss of class 7:", ", ".join(f"{v:.3f}" for v in losses))
    return error, losses


if __name__ == "__main__":
    main()
