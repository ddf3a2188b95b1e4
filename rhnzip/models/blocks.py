"""Recurrent cells as building blocks: what stacked LSTM, sequential LSTM and FS-RNN are put together from.

A block turns its input and its state into a new state, whose first vector is its output. The input is a
vector, a row of the symbol table, or nothing.

LSTM (Hochreiter & Schmidhuber 1997; with layer norm as in Mujika et al. 2017, their repository's LNLSTM):

    i, j, f, o = four parts of W x + R h + b, each layer-normalised with gain and shift of its own
    c' = c sigmoid(f + 1) + sigmoid(i) tanh(j)
    h' = tanh(norm(c')) sigmoid(o)

Zoneout (Krueger et al. 2017) takes the new h' with probability `keep_hidden`, the new c' with `keep_cell`,
else the old; when not training it takes the mean so weighted.

Highway: L layers of a recurrent highway network (Zilly et al. 2017, eqs. 6-9), of which the first sees the
input.

Legend: H units, K width of the input, V symbols, E embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from rhnzip.models.cell import Folded, FoldedShapes, Parameters

FORGET_BIAS = 1.0
"""Added to the forget gate's argument, after layer norm where there is one."""


def orthogonal(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """A matrix with orthonormal rows or columns, whichever are fewer."""
    value = torch.empty(shape)
    return torch.nn.init.orthogonal_(value, generator=generator)


class Block(Protocol):
    """A recurrent cell; parameters are named after it."""

    @property
    def name(self) -> str:
        """Prefix of its parameters."""
        ...

    @property
    def units(self) -> int:
        """Width of its output."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        ...

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Draw initial parameters."""
        ...

    def fold(self, parameters: Parameters, embedding: Tensor | None = None) -> Folded:
        """Linear maps and tables; with `embedding`, (V, E), the input becomes a table of V rows."""
        ...

    def folded_shapes(self, vocabulary: int = 0) -> FoldedShapes:
        """Shapes of what `fold` returns; `vocabulary` where the input is a table."""
        ...

    def state_widths(self) -> tuple[int, ...]:
        """Widths of the state's vectors."""
        ...

    def inputs(self, x: str) -> dict[str, str]:
        """Which value each linear map reads; the input is of value scale `x`, "" if a table or nothing."""
        ...

    def step(self, ops: Any, state: tuple[Any, ...], *, x: Any = None, rows: Any = None) -> tuple[Any, ...]:
        """One step: `x` a value, or `rows` of the input table, or neither."""
        ...


@dataclass(frozen=True)
class LSTMBlock:
    """LSTM.

    Attributes:
        name: prefix of its parameters.
        inputs_width: K; 0 without an input.
        units: H.
        norm: whether gates and cell are layer-normalised.
        keep_hidden: zoneout of h: share of the new value.
        keep_cell: zoneout of c.
        value: name of the scale of its output.
        skip_width: E, if it reads the symbol beside its input; else 0.
        own_bias: whether the bias stays beside the table of the symbols it reads. Folded into the table it
            costs nothing, but while coding every symbol's row would have to learn it by itself.
    """

    name: str
    inputs_width: int
    units: int
    norm: bool = True
    keep_hidden: float = 1.0
    keep_cell: float = 1.0
    value: str = "hidden"
    skip_width: int = 0
    own_bias: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        name, units, width = self.name, self.units, 4 * self.units
        shapes: dict[str, tuple[int, ...]] = {}
        if self.inputs_width:
            shapes[f"{name}.input"] = (self.inputs_width, width)
        if self.skip_width:
            shapes[f"{name}.skip"] = (self.skip_width, width)
        shapes |= {f"{name}.recurrent": (units, width), f"{name}.bias": (width,)}
        if self.norm:
            shapes |= {f"{name}.gain": (width,), f"{name}.shift": (width,)}
            shapes |= {f"{name}.cell_gain": (units,), f"{name}.cell_shift": (units,)}
        return shapes

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Orthogonal weights, zero biases, gains of one."""
        parameters = {}
        for name, shape in self.shapes().items():
            if len(shape) == 1:
                parameters[name] = torch.ones(shape) if name.endswith("gain") else torch.zeros(shape)
            else:
                parameters[name] = orthogonal(shape, generator)
        return parameters

    @property
    def _symbols(self) -> str:
        """Which weight the symbol goes through."""
        return "skip" if self.skip_width else "input"

    def fold(self, parameters: Parameters, embedding: Tensor | None = None) -> Folded:
        """The forget gate's constant goes into its bias, or its shift under layer norm."""
        name, units = self.name, self.units
        linears = {f"{name}.recurrent": parameters[f"{name}.recurrent"]}
        bias = parameters[f"{name}.bias"]
        forget = torch.zeros_like(bias)
        forget[2 * units : 3 * units] = FORGET_BIAS
        tables = {}
        if self.norm:
            tables[f"{name}.shift"] = (parameters[f"{name}.shift"] + forget).unsqueeze(0)
            for kind in ("gain", "cell_gain", "cell_shift"):
                tables[f"{name}.{kind}"] = parameters[f"{name}.{kind}"].unsqueeze(0)
        else:
            bias = bias + forget
        if embedding is None or self.own_bias:
            tables[f"{name}.bias"] = bias.unsqueeze(0)
        if embedding is not None:
            rows = embedding @ parameters[f"{name}.{self._symbols}"]
            tables[f"{name}.symbols"] = rows if self.own_bias else rows + bias
        if self.inputs_width and (embedding is None or self.skip_width):
            linears[f"{name}.input"] = parameters[f"{name}.input"]
        return Folded(linears, tables)

    def folded_shapes(self, vocabulary: int = 0) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        name, units, width = self.name, self.units, 4 * self.units
        linears: dict[str, tuple[int, ...]] = {f"{name}.recurrent": (units, width)}
        tables: dict[str, tuple[int, ...]] = {}
        if self.norm:
            tables |= {f"{name}.shift": (1, width), f"{name}.gain": (1, width)}
            tables |= {f"{name}.cell_gain": (1, units), f"{name}.cell_shift": (1, units)}
        if vocabulary:
            tables[f"{name}.symbols"] = (vocabulary, width)
        if not vocabulary or self.own_bias:
            tables[f"{name}.bias"] = (1, width)
        if self.inputs_width and (not vocabulary or self.skip_width):
            linears[f"{name}.input"] = (self.inputs_width, width)
        return FoldedShapes(linears, tables)

    def state_widths(self) -> tuple[int, ...]:
        """Output h and cell c."""
        return (self.units, self.units)

    def inputs(self, x: str) -> dict[str, str]:
        """Which value each linear map reads."""
        return {f"{self.name}.recurrent": self.value} | ({f"{self.name}.input": x} if x else {})

    def step(self, ops: Any, state: tuple[Any, ...], *, x: Any = None, rows: Any = None) -> tuple[Any, ...]:
        """One step: (h, c) to (h', c')."""
        h, c = state
        name = self.name
        a = ops.affine(ops.linear(f"{name}.recurrent", h), rows or ops.rows(f"{name}.bias"))
        bias = ops.rows(f"{name}.bias") if rows and self.own_bias else None
        if x is not None:
            a = ops.add(a, ops.affine(ops.linear(f"{name}.input", x), bias))
        elif bias:
            a = ops.add(a, ops.lookup(bias))
        if self.norm:
            gain, shift = ops.lookup(ops.rows(f"{name}.gain")), ops.lookup(ops.rows(f"{name}.shift"))
            a = ops.scaled_norm(a, gain, shift, 4)
        new_c = ops.lstm_cell(a, c)
        seen = new_c
        if self.norm:
            gain = ops.lookup(ops.rows(f"{name}.cell_gain"))
            shift = ops.lookup(ops.rows(f"{name}.cell_shift"))
            seen = ops.scaled_norm(new_c, gain, shift, 1)
        new_h = ops.lstm_output(seen, a)
        if self.keep_hidden < 1:
            new_h = ops.zoneout(new_h, h, self.keep_hidden)
        if self.keep_cell < 1:
            new_c = ops.zoneout(new_c, c, self.keep_cell)
        return ops.quantise(new_h, self.value), new_c


@dataclass(frozen=True)
class HighwayBlock:
    """L coupled recurrent highway layers.

    Attributes:
        name: prefix of its parameters.
        inputs_width: K; 0 without an input.
        units: H.
        depth: L.
        gate_bias: initial bias of the transform gates.
        value: name of the scale of its output.
    """

    name: str
    inputs_width: int
    units: int
    depth: int
    gate_bias: float = -2.0
    value: str = "hidden"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.inputs_width:
            shapes[f"{self.name}.input"] = (self.inputs_width, 2 * self.units)
        for layer in range(self.depth):
            shapes[f"{self.name}.recurrent.{layer}"] = (self.units, 2 * self.units)
            shapes[f"{self.name}.bias.{layer}"] = (2 * self.units,)
        return shapes

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Weights uniform within 1 / sqrt(fan-in); layers start by carrying."""
        parameters = {}
        for name, shape in self.shapes().items():
            if len(shape) == 1:
                parameters[name] = torch.zeros(shape)
                parameters[name][self.units :] = self.gate_bias
            else:
                parameters[name] = (torch.rand(shape, generator=generator) * 2 - 1) * shape[0] ** -0.5
        return parameters

    def fold(self, parameters: Parameters, embedding: Tensor | None = None) -> Folded:
        """Linear maps and tables."""
        names = [f"{self.name}.recurrent.{layer}" for layer in range(self.depth)]
        linears = {name: parameters[name] for name in names}
        biases = [f"{self.name}.bias.{layer}" for layer in range(self.depth)]
        tables = {name: parameters[name].unsqueeze(0) for name in biases}
        if embedding is not None:
            first = tables.pop(biases[0])
            tables[f"{self.name}.symbols"] = embedding @ parameters[f"{self.name}.input"] + first
        elif self.inputs_width:
            linears[f"{self.name}.input"] = parameters[f"{self.name}.input"]
        return Folded(linears, tables)

    def folded_shapes(self, vocabulary: int = 0) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        width = 2 * self.units
        linears = {f"{self.name}.recurrent.{layer}": (self.units, width) for layer in range(self.depth)}
        tables = {f"{self.name}.bias.{layer}": (1, width) for layer in range(self.depth)}
        if vocabulary:
            del tables[f"{self.name}.bias.0"]
            tables[f"{self.name}.symbols"] = (vocabulary, width)
        elif self.inputs_width:
            linears[f"{self.name}.input"] = (self.inputs_width, width)
        return FoldedShapes(dict(linears), dict(tables))

    def state_widths(self) -> tuple[int, ...]:
        """The state is the output."""
        return (self.units,)

    def inputs(self, x: str) -> dict[str, str]:
        """Which value each linear map reads."""
        reads = {f"{self.name}.recurrent.{layer}": self.value for layer in range(self.depth)}
        return reads | ({f"{self.name}.input": x} if x else {})

    def step(self, ops: Any, state: tuple[Any, ...], *, x: Any = None, rows: Any = None) -> tuple[Any, ...]:
        """One step: L highway layers."""
        (s,) = state
        for layer in range(self.depth):
            product = ops.linear(f"{self.name}.recurrent.{layer}", s)
            bias = rows if rows and not layer else ops.rows(f"{self.name}.bias.{layer}")
            if layer or x is None:
                s = ops.highway(product, bias, s, self.value)
                continue
            a = ops.add(ops.affine(product, bias), ops.affine(ops.linear(f"{self.name}.input", x)))
            h, t = ops.tanh(ops.part(a, 0, self.units)), ops.sigmoid(ops.part(a, self.units, 2 * self.units))
            s = ops.quantise(ops.mix(t, h, s), self.value)
        return (s,)


def joined(parts: list[Folded]) -> Folded:
    """One set of maps and tables from those of several blocks."""
    linears: dict[str, Tensor] = {}
    tables: dict[str, Tensor] = {}
    for part in parts:
        linears |= part.linears
        tables |= part.tables
    return Folded(linears, tables)


def joined_shapes(parts: list[FoldedShapes]) -> FoldedShapes:
    """The same of shapes."""
    linears: dict[str, tuple[int, ...]] = {}
    tables: dict[str, tuple[int, ...]] = {}
    for part in parts:
        linears |= part.linears
        tables |= part.tables
    return FoldedShapes(linears, tables)
