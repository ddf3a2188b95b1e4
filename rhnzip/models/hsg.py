"""Highway state gate (Shoham & Permuter 2018) around a recurrent highway network of any depth.

    g = sigmoid(W_R s_(t-1) + W_F s_L + b_G)
    s_t = g s_(t-1) + (1 - g) s_L

with s_L what the network's L layers make of s_(t-1). The gate is a short way through time past all layers.

Legend: H units, L recurrence depth, V symbols, E embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from rhnzip.models.cell import Folded, FoldedShapes, Parameters
from rhnzip.models.rhn import RHN, RHNConfig


@dataclass(frozen=True)
class HSGConfig:
    """Sizes of a recurrent highway network with a state gate; see `RHNConfig`.

    Attributes:
        units: H, state width.
        depth: L.
        embedding: E.
        vocabulary: V.
        gate_bias: initial bias of the transform gates.
        state_gate_bias: initial bias of the state gate (negative: it starts by letting s_L through).
        init_range: weights start uniform in +-init_range; 0 means 1/sqrt(fan-in).
    """

    units: int
    depth: int
    embedding: int = 256
    vocabulary: int = 256
    gate_bias: float = -2.0
    state_gate_bias: float = -2.5
    init_range: float = 0.0
    cell: str = "hsg"


class HSG(RHN):
    """State-gated recurrent highway network over the `ops` primitives."""

    general = True

    def __init__(self, config: HSGConfig) -> None:
        """Keep the sizes."""
        super().__init__(
            RHNConfig(
                config.units,
                config.depth,
                config.embedding,
                config.vocabulary,
                gate_bias=config.gate_bias,
                init_range=config.init_range,
            )
        )
        self.config: Any = config
        self._gate = {
            "state_gate.previous": (config.units, config.units),
            "state_gate.new": (config.units, config.units),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        return super().shapes() | self._gate | {"state_gate_bias": (self.config.units,)}

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """As the inner network's; the gate starts nearly closed."""
        parameters = super().initial(generator)
        parameters["state_gate_bias"] = torch.full((self.config.units,), self.config.state_gate_bias)
        return parameters

    def fold(self, parameters: Parameters) -> Folded:
        """The inner network's, and the gate's."""
        inner = super().fold(parameters)
        gate = {name: parameters[name] for name in self._gate}
        bias = {"state_gate_bias": parameters["state_gate_bias"].unsqueeze(0)}
        return Folded(inner.linears | gate, inner.tables | bias)

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        inner = super().folded_shapes()
        return FoldedShapes(
            inner.linears | self._gate, inner.tables | {"state_gate_bias": (1, self.config.units)}
        )

    def inputs(self) -> dict[str, str]:
        """All values are states, bounded by 1."""
        return super().inputs() | dict.fromkeys(self._gate, "state")

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each."""
        (before,) = state
        (new,) = super().step(ops, symbols, state)
        a = ops.affine(ops.linear("state_gate.previous", before), ops.rows("state_gate_bias"))
        gate = ops.sigmoid(ops.add(a, ops.affine(ops.linear("state_gate.new", new))))
        return (ops.quantise(ops.mix(gate, before, new), "state"),)
