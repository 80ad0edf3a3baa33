"""Layers that go through sequences; names and shapes of weights are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from ...core.array_methods import Operandish
from ..recurrence import gru, lstm
from .dense import check_rate, counted
from .initializers import Initializer, uniform
from .layer import Initial, Layer

__all__ = ["GRU", "LSTM"]


class _Recurrent(Layer):
    """Weights of each layer and direction: of inputs, of states, and two biases."""

    gates: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        inputs: int,
        size: int,
        *,
        layers: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        layout: str = "NTC",
        dropout: float = 0.0,
        weight_init: Initializer | None = None,
    ) -> None:
        counted(type(self).__name__, inputs=inputs, size=size, layers=layers)
        check_rate(type(self).__name__, dropout)
        init = weight_init or uniform(1 / math.sqrt(size))
        rows = self.gates * size
        self.size = size
        self.layers = layers
        self.bidirectional = bidirectional
        self.layout = layout
        self.dropout = dropout
        for end, features in self._ends(inputs):
            setattr(self, f"weight_ih{end}", Initial((rows, features), init, (features, rows)))
            setattr(self, f"weight_hh{end}", Initial((rows, size), init, (size, rows)))
            for name in ("bias_ih", "bias_hh") if bias else ():
                setattr(self, name + end, Initial((rows,), init, (size, rows)))

    def _ends(self, inputs: int) -> list[tuple[str, int]]:
        """How names of a layer's and direction's weights end, and the features it reads."""
        turns = ("", "_reverse") if self.bidirectional else ("",)
        below = self.size * len(turns)
        return [
            (f"_l{k}{turn}", below if k else inputs) for k in range(self.layers) for turn in turns
        ]

    def forward(
        self, x: Operandish, initial: Any = None, *, lengths: Operandish | None = None
    ) -> Any:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own = vars(self)
        weights = [[own[n + end] for n in names if n + end in own] for end, _ in self._ends(0)]
        rate = self.dropout if self.training and self.layers > 1 else 0.0
        return type(self).function(
            x,
            weights,
            initial,
            bidirectional=self.bidirectional,
            lengths=lengths,
            layout=self.layout,
            dropout=rate,
            seed=self.next_seed() if rate else None,
        )


class LSTM(_Recurrent, init=False):
    """Long short-term memory, in several layers and both directions: what comes out at each time, and the
    last states (h, c), as `ost.nn.lstm` gives them. A call takes these as `initial`.

    >>> y, (h, c) = ost.nn.LSTM(3, 4).init(seed=0)(ost.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates = 4
    function = staticmethod(lstm)


class GRU(_Recurrent, init=False):
    """Gated recurrent units, as `ost.nn.gru`: what comes out at each time, and the last states.

    >>> y, h = ost.nn.GRU(3, 4, layers=2).init(seed=0)(ost.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (2, 2, 4))
    """

    gates = 3
    function = staticmethod(gru)
