"""Recurrent highway hypernetwork (Suarez 2017, "Language Modeling with Recurrent Highway Hypernetworks").

A small recurrent highway network reads the same symbols; after each of its L micro-steps its state e_l gives
a vector that scales what the main network's weights make of its state in the same micro-step:

    z_l = P_l e_l + p_l
    a_l = (W x [l = 1] + R_l s_(l-1)) * [z_l, z_l] + b_l
    s_l = tanh(first half of a_l) t_l + s_(l-1) (1 - t_l),  t_l = sigmoid(second half of a_l)

Recurrent dropout takes the transform gate in the first product alone, with a fresh mask each time; dropping h
instead is the same. The repository leaves out R_1 s_0 and its bias at the very first step; here that bias
counts.

Legend: H units, H' units of the small network, L micro-steps of both, V symbols, E embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from rhnzip.models.blocks import orthogonal
from rhnzip.models.cell import Folded, FoldedShapes, Parameters


@dataclass(frozen=True)
class HyperRHNConfig:
    """Sizes of a recurrent highway hypernetwork.

    Attributes:
        units: H.
        depth: L, the same in both networks.
        hyper_units: H'.
        embedding: E, width of the symbol embedding; folded away at export.
        vocabulary: V.
        gate_bias: initial bias of the transform gates.
    """

    units: int
    depth: int
    hyper_units: int = 128
    embedding: int = 27
    vocabulary: int = 256
    gate_bias: float = -2.0
    cell: str = "hyper_rhn"


class HyperRHN:
    """Recurrent highway hypernetwork over the `ops` primitives."""

    general = True

    def __init__(self, config: HyperRHNConfig) -> None:
        """Keep the sizes."""
        self.config = config

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        c = self.config
        shapes: dict[str, tuple[int, ...]] = {"embedding": (c.vocabulary, c.embedding)}
        for net, units in (("main", c.units), ("hyper", c.hyper_units)):
            shapes[f"{net}.input"] = (c.embedding, 2 * units)
            shapes[f"{net}.input_bias"] = (2 * units,)
            for layer in range(c.depth):
                shapes[f"{net}.{layer}"] = (units, 2 * units)
                shapes[f"{net}.bias.{layer}"] = (2 * units,)
        for layer in range(c.depth):
            shapes[f"scale.{layer}"] = (c.hyper_units, c.units)
            shapes[f"scale_bias.{layer}"] = (c.units,)
        return shapes | {"output": (c.units, c.vocabulary), "output_bias": (c.vocabulary,)}

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Orthogonal weights; scales start about 1, layers by carrying."""
        parameters = {}
        for name, shape in self.shapes().items():
            if len(shape) == 2:
                value = orthogonal(shape, generator)
                parameters[name] = value * 0.1 if name.startswith("scale") else value
                continue
            value = torch.zeros(shape)
            if name.startswith("scale_bias"):
                value += 1
            elif ".bias." in name:
                value[shape[0] // 2 :] = self.config.gate_bias
            parameters[name] = value
        return parameters

    def fold(self, parameters: Parameters) -> Folded:
        """One table holds the symbols' rows of both networks, side by side."""
        linears, tables = {}, {}
        embedding = parameters["embedding"]
        symbols = []
        for net in ("main", "hyper"):
            symbols.append(embedding @ parameters[f"{net}.input"])
            for layer in range(self.config.depth):
                linears[f"{net}.{layer}"] = parameters[f"{net}.{layer}"]
                bias = parameters[f"{net}.bias.{layer}"]
                bias = bias if layer else bias + parameters[f"{net}.input_bias"]
                tables[f"{net}.bias.{layer}"] = bias.unsqueeze(0)
        tables["symbols"] = torch.cat(symbols, dim=1)
        for layer in range(self.config.depth):
            linears[f"scale.{layer}"] = parameters[f"scale.{layer}"]
            tables[f"scale_bias.{layer}"] = parameters[f"scale_bias.{layer}"].unsqueeze(0)
        linears["output"] = parameters["output"]
        tables["output_bias"] = parameters["output_bias"].unsqueeze(0)
        return Folded(linears, tables)

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        c = self.config
        linears: dict[str, tuple[int, ...]] = {}
        tables: dict[str, tuple[int, ...]] = {"symbols": (c.vocabulary, 2 * (c.units + c.hyper_units))}
        for net, units in (("main", c.units), ("hyper", c.hyper_units)):
            for layer in range(c.depth):
                linears[f"{net}.{layer}"] = (units, 2 * units)
                tables[f"{net}.bias.{layer}"] = (1, 2 * units)
        for layer in range(c.depth):
            linears[f"scale.{layer}"] = (c.hyper_units, c.units)
            tables[f"scale_bias.{layer}"] = (1, c.units)
        linears["output"] = (c.units, c.vocabulary)
        tables["output_bias"] = (1, c.vocabulary)
        return FoldedShapes(linears, tables)

    def embed(
        self, parameters: Parameters, symbols: Tensor, symbol_mask: Tensor, input_mask: Tensor
    ) -> Tensor:
        """Input rows of both networks side by side under input dropout; shapes as in `RHN.embed`."""
        whole = symbol_mask.gather(1, symbols.t()).t().unsqueeze(-1)
        x = parameters["embedding"][symbols] * whole * input_mask
        return torch.cat((x @ parameters["main.input"], x @ parameters["hyper.input"]), dim=-1)

    def state_widths(self) -> tuple[int, ...]:
        """The main state, then the small one's."""
        return (self.config.units, self.config.hyper_units)

    def value_scales(self) -> dict[str, float | None]:
        """Both states are convex mixes of tanh values."""
        return {"state": 127.0, "hyper": 127.0}

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """Variational masks: rate in the recipe, and width, by name."""
        return {"output": ("output", self.config.units)}

    def inputs(self) -> dict[str, str]:
        """Which value each linear map reads."""
        reads = {"output": "state"}
        for layer in range(self.config.depth):
            reads |= {f"main.{layer}": "state", f"hyper.{layer}": "hyper", f"scale.{layer}": "hyper"}
        return reads

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each."""
        s, e = state
        units, hyper_units = self.config.units, self.config.hyper_units
        both = ops.lookup(ops.rows("symbols", symbols))
        for layer in range(self.config.depth):
            hyper = ops.affine(ops.linear(f"hyper.{layer}", e), ops.rows(f"hyper.bias.{layer}"))
            if not layer:
                hyper = ops.add(hyper, ops.part(both, 2 * units, 2 * (units + hyper_units)))
            h = ops.tanh(ops.part(hyper, 0, hyper_units))
            t = ops.sigmoid(ops.part(hyper, hyper_units, 2 * hyper_units))
            e = ops.quantise(ops.mix(t, h, e), "hyper")
            z = ops.affine(ops.linear(f"scale.{layer}", e), ops.rows(f"scale_bias.{layer}"))
            a = ops.affine(ops.linear(f"main.{layer}", s))
            if not layer:
                a = ops.add(a, ops.part(both, 0, 2 * units))
            bias = ops.lookup(ops.rows(f"main.bias.{layer}"))
            h, t = (
                ops.add(
                    ops.multiply(ops.part(a, start, start + units), z), ops.part(bias, start, start + units)
                )
                for start in (0, units)
            )
            h, t = ops.fresh_dropout("gate", ops.tanh(h)), ops.sigmoid(t)
            s = ops.quantise(ops.mix(t, h, s), "state")
        return s, e

    def head(self, ops: Any, state: tuple[Any, ...]) -> Any:
        """Next symbol's logits or counts from the main state."""
        return ops.output(ops.linear("output", ops.dropout("output", state[0])), ops.rows("output_bias"))
