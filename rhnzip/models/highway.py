"""Feed-forward highway layers (Srivastava et al. 2015, "Training Very Deep Networks", eq. 3).

    y = H(x) T(x) + x (1 - T(x)),  H = tanh, T = sigmoid with a negative bias at the start

The recurrent networks here put a stack of them between their state and the output layer, if asked to.

Legend: H units, K layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from rhnzip.models.cell import Folded, FoldedShapes, Parameters


class HighwayStack:
    """K highway layers of H units; they read and make values of scale `scale`."""

    def __init__(self, units: int, layers: int, gate_bias: float, scale: str = "state") -> None:
        """Keep the sizes; `gate_bias` is the transform gates' bias at the start."""
        self.units, self.layers, self.gate_bias, self.scale = units, layers, gate_bias, scale

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for k in range(self.layers):
            shapes[f"highway.{k}"] = (self.units, 2 * self.units)
            shapes[f"highway_bias.{k}"] = (2 * self.units,)
        return shapes

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Draw weights uniform within 1 / sqrt(H); layers start by carrying."""
        parameters = {}
        for name, shape in self.shapes().items():
            if len(shape) == 1:
                value = torch.zeros(shape)
                value[self.units :] = self.gate_bias
            else:
                value = (torch.rand(shape, generator=generator) * 2 - 1) * self.units**-0.5
            parameters[name] = value
        return parameters

    def fold(self, parameters: Parameters) -> Folded:
        """Weights, and biases as tables of one row."""
        layers = range(self.layers)
        return Folded(
            {f"highway.{k}": parameters[f"highway.{k}"] for k in layers},
            {f"highway_bias.{k}": parameters[f"highway_bias.{k}"].unsqueeze(0) for k in layers},
        )

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        width = 2 * self.units
        return FoldedShapes(
            {f"highway.{k}": (self.units, width) for k in range(self.layers)},
            {f"highway_bias.{k}": (1, width) for k in range(self.layers)},
        )

    def inputs(self) -> dict[str, str]:
        """Which value each linear map reads."""
        return {f"highway.{k}": self.scale for k in range(self.layers)}

    def run(self, ops: Any, x: Any) -> Any:
        """Apply all layers."""
        for k in range(self.layers):
            product = ops.linear(f"highway.{k}", ops.dropout("hidden", x))
            x = ops.highway(product, ops.rows(f"highway_bias.{k}"), x, self.scale)
        return x
