"""Recurrent highway network (Zilly et al. 2017, "Recurrent Highway Networks", eqs. 6-9).

One step applies L highway layers to the state; only the first sees the input:

    h_l = tanh(W_H x [l = 1] + R_Hl s_(l-1) + b_Hl)
    t_l = sigmoid(W_T x [l = 1] + R_Tl s_(l-1) + b_Tl)
    s_l = h_l t_l + s_(l-1) c_l

with the carry gate c = 1 - t (coupled, as in all of the paper's experiments) or c = sigmoid(...) with weights
of its own. The last s_L is the state carried to the next step and what the output layer reads.

Legend: B lanes, H units, L recurrence depth, V symbols, E embedding width, G gates (2 coupled, 3 uncoupled).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from rhnzip.models.cell import Folded, FoldedShapes, Parameters
from rhnzip.models.highway import HighwayStack


@dataclass(frozen=True)
class RHNConfig:
    """Sizes of a recurrent highway network.

    Attributes:
        units: H, state width.
        depth: L, highway layers per step (recurrence depth).
        embedding: E, width of the symbol embedding; folded away at export.
        vocabulary: V; 256 for coding, fewer only to reproduce published parameter counts.
        coupled: carry gate c = 1 - t; otherwise it has its own weights.
        gate_bias: initial bias of the transform gates (negative: layers start by carrying).
        init_range: weights start uniform in +-init_range; 0 means 1/sqrt(fan-in).
        head_layers: feed-forward highway layers between state and output.
    """

    units: int
    depth: int
    embedding: int = 256
    vocabulary: int = 256
    coupled: bool = True
    gate_bias: float = -2.0
    init_range: float = 0.0
    head_layers: int = 0
    cell: str = "rhn"


class RHN:
    """Recurrent highway network over the `ops` primitives."""

    general = False

    def __init__(self, config: RHNConfig) -> None:
        """Keep the sizes; parameters are passed in by whoever owns them."""
        self.config = config
        self.stack = HighwayStack(config.units, config.head_layers, config.gate_bias)
        self.gates = 2 if config.coupled else 3

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        c, width = self.config, self.gates * self.config.units
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (c.vocabulary, c.embedding),
            "input": (c.embedding, width),
        }
        for layer in range(c.depth):
            shapes[f"recurrent.{layer}"] = (c.units, width)
            shapes[f"bias.{layer}"] = (width,)
        shapes |= self.stack.shapes()
        shapes["output"] = (c.units, c.vocabulary)
        shapes["output_bias"] = (c.vocabulary,)
        return shapes

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Draw initial parameters: uniform weights, zero biases, transform gates biased towards carrying."""
        c = self.config
        parameters = {}
        stack = self.stack.initial(generator)
        for name, shape in self.shapes().items():
            if name in stack:
                parameters[name] = stack[name]
                continue
            if len(shape) == 1:
                value = torch.zeros(shape)
                if name != "output_bias":
                    value[c.units : 2 * c.units] = c.gate_bias
                    value[2 * c.units :] = -c.gate_bias
            else:
                bound = c.init_range or (1.0 if name == "embedding" else shape[0] ** -0.5)
                value = (torch.rand(shape, generator=generator) * 2 - 1) * bound
            parameters[name] = value
        return parameters

    def fold(self, parameters: Parameters) -> Folded:
        """One-hot input, embedding, input weights and first bias become one table of V rows."""
        linears, tables = {}, {}
        tables["input"] = parameters["embedding"] @ parameters["input"] + parameters["bias.0"]
        for layer in range(self.config.depth):
            linears[f"recurrent.{layer}"] = parameters[f"recurrent.{layer}"]
            if layer:
                tables[f"bias.{layer}"] = parameters[f"bias.{layer}"].unsqueeze(0)
        linears["output"] = parameters["output"]
        tables["output_bias"] = parameters["output_bias"].unsqueeze(0)
        stack = self.stack.fold(parameters)
        return Folded(linears | stack.linears, tables | stack.tables)

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        c, width = self.config, self.gates * self.config.units
        linears: dict[str, tuple[int, ...]] = {
            f"recurrent.{layer}": (c.units, width) for layer in range(c.depth)
        }
        tables: dict[str, tuple[int, ...]] = {"input": (c.vocabulary, width)}
        tables |= {f"bias.{layer}": (1, width) for layer in range(1, c.depth)}
        tables["output_bias"] = (1, c.vocabulary)
        linears["output"] = (c.units, c.vocabulary)
        stack = self.stack.folded_shapes()
        return FoldedShapes(linears | stack.linears, tables | stack.tables)

    def embed(
        self, parameters: Parameters, symbols: Tensor, symbol_mask: Tensor, input_mask: Tensor
    ) -> Tensor:
        """Input rows of a segment under variational dropout (whole symbols; embedding units per lane).

        Shapes: symbols (T, B), symbol_mask (B, V), input_mask (B, E) -> (T, B, G H).
        """
        x = (
            parameters["embedding"][symbols]
            * symbol_mask.gather(1, symbols.t()).t().unsqueeze(-1)
            * input_mask
        )
        return x @ parameters["input"] + parameters["bias.0"]

    def state_widths(self) -> tuple[int, ...]:
        """One vector of H units."""
        return (self.config.units,)

    def value_scales(self) -> dict[str, float | None]:
        """The coupled state is a convex mix of tanh values, so |s| < 1; the uncoupled one is measured."""
        return {"state": 127.0 if self.gates == 2 else None}

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """One mask for all layers, one before the output layer (Zilly et al. 2017 after Gal 2015)."""
        return {name: (name, self.config.units) for name in ("hidden", "output")}

    def inputs(self) -> dict[str, str]:
        """Every product reads the state, between two layers or between two steps."""
        recurrent = {f"recurrent.{layer}": "state" for layer in range(self.config.depth)}
        return recurrent | self.stack.inputs() | {"output": "state"}

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each (eqs. 6-9)."""
        (s,) = state
        highway = ops.highway if self.gates == 2 else ops.highway_uncoupled
        for layer in range(self.config.depth):
            rows = ops.rows(f"bias.{layer}") if layer else ops.rows("input", symbols)
            s = highway(ops.linear(f"recurrent.{layer}", ops.dropout("hidden", s)), rows, s, "state")
        return (s,)

    def head(self, ops: Any, state: tuple[Any, ...]) -> Any:
        """Next symbol's logits or counts from the last layer's state."""
        s = self.stack.run(ops, state[0])
        return ops.output(ops.linear("output", ops.dropout("output", s)), ops.rows("output_bias"))
