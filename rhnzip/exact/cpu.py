"""The CPU backend: `torch._int_mm` for products, one numba kernel for each pointwise primitive.

Legend: B lanes, H units, V symbols, N outputs of a linear map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhnzip.exact import elementwise, kernels
from rhnzip.exact.backend import Learner, Settings
from rhnzip.exact.constants import SYMBOLS, exp2_table
from rhnzip.exact.cpu_general import Back, CpuGeneral
from rhnzip.exact.product import ProductMap
from rhnzip.exact.weights import ExactWeights, Float

_CPU = torch.device("cpu")


@dataclass
class Value:
    """Float32 content, (B, width), and its int8 form, seen by numpy and torch; its gradient when learning."""

    floats: Float
    int8: NDArray[np.int8]
    tensor: Tensor
    gradient: Float | None = None

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.floats[0])


@dataclass
class Rows:
    """A table and the row of it that belongs to each lane."""

    name: str
    table: Float
    index: NDArray[np.int64]


@dataclass
class Product:
    """A product not yet carried out."""

    name: str
    x: Value


class CpuBackend:
    """Numba kernels on the CPU; lanes may be spread over threads, one workspace each."""

    name = "numba"
    device = "cpu"
    parallel = True

    def prepare(self, weights: ExactWeights) -> CpuPrepared:
        """Lay out weights; they are copied."""
        return CpuPrepared(weights)

    def learner(self, weights: ExactWeights, inputs: dict[str, str], settings: Settings) -> Learner:
        """Weights that learn."""
        from rhnzip.exact.learner import CpuLearner

        return CpuLearner(weights, inputs, settings)


class CpuPrepared:
    """Weights in the layout the products like."""

    def __init__(self, weights: ExactWeights) -> None:
        """Copy everything into contiguous arrays."""
        self.maps = {name: ProductMap(linear.weight, _CPU) for name, linear in weights.linears.items()}
        self.column_scales = {name: linear.scale.copy() for name, linear in weights.linears.items()}
        self.tables = {name: np.array(table, np.float32, order="C") for name, table in weights.tables.items()}
        self.value_scales = {name: np.float32(scale) for name, scale in weights.scales.items()}
        self.exp2 = np.array(exp2_table(), np.int32)

    def open(self, lanes: int) -> CpuOps:
        """Workspace for `lanes` lanes."""
        return CpuOps(self, lanes)


class CpuOps(CpuGeneral):
    """Primitives over one group of lanes. Buffers alternate between steps, so that nothing is allocated."""

    def __init__(self, prepared: CpuPrepared, lanes: int) -> None:
        """Test the products at this number of lanes and allocate."""
        self.lanes = lanes
        self._prepared = prepared
        self._fast = {name: product.check(lanes) for name, product in prepared.maps.items()}
        self._sums: dict[str, tuple[Tensor, Any]] = {}
        for name, product in prepared.maps.items():
            sums = torch.empty(lanes, product.columns, dtype=torch.int32)
            self._sums[name] = (sums, sums.numpy())
        self._arenas: tuple[list[Value], list[Value]] = ([], [])
        self._parity, self._taken = 0, 0
        self._first_row = np.zeros(lanes, np.int64)
        self._work = np.empty(SYMBOLS, np.int32)
        self._counts = np.empty((lanes, SYMBOLS), np.float32)

    def _value(self, width: int) -> Value:
        int8 = torch.zeros(self.lanes, width, dtype=torch.int8)
        return Value(np.zeros((self.lanes, width), np.float32), int8.numpy(), int8)

    def _arena(self) -> list[Value]:
        """Values of this step, in the order in which they are made."""
        return self._arenas[self._parity]

    def _take(self, width: int) -> Value:
        arena = self._arena()
        if self._taken == len(arena):
            arena.append(self._value(width))
        value = arena[self._taken]
        if value.width != width:
            value = arena[self._taken] = self._value(width)
        self._taken += 1
        return value

    def begin_step(self) -> None:
        """Start a step."""
        self._parity, self._taken = 1 - self._parity, 0

    def symbols(self, symbols: NDArray[np.int64]) -> NDArray[np.int64]:
        """One symbol per lane."""
        return symbols

    def zeros(self, width: int) -> Value:
        """A value of zeros."""
        return self._value(width)

    def rows(self, name: str, index: NDArray[np.int64] | None = None) -> Rows:
        """Rows of a table."""
        return Rows(name, self._prepared.tables[name], self._first_row if index is None else index)

    def dropout(self, _name: str, x: Value) -> Value:
        """Return `x`."""
        return x

    def linear(self, name: str, x: Value) -> Product:
        """Product of `x` with weight `name`."""
        return Product(name, x)

    def _multiply(self, product: Product) -> Any:
        tensor, array = self._sums[product.name]
        self._prepared.maps[product.name](product.x.tensor, tensor, fast=self._fast[product.name])
        return array

    def _update(self, kernel: Any, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        acc = self._multiply(product)
        out = self._take(s.width)
        prepared = self._prepared
        columns, quant = prepared.column_scales[product.name], prepared.value_scales[scale]
        kernel(acc, columns, rows.table, rows.index, s.floats, quant, out.floats, out.int8)
        return out

    def _record(self, out: Value, back: Back) -> None:
        """Nothing is learned."""

    def affine(self, product: Product, rows: Rows | None = None) -> Value:
        """A product as a value, with rows added if there are any."""
        acc, columns = self._multiply(product), self._prepared.column_scales[product.name]
        return self._affine(acc, columns, rows)

    def _affine(self, acc: Any, columns: Float, rows: Rows | None) -> Value:
        out = self._take(len(columns))
        if rows is None:
            elementwise.affine(acc, columns, out.floats)
        else:
            elementwise.affine_rows(acc, columns, rows.table, rows.index, out.floats)
        return out

    def lookup(self, rows: Rows) -> Value:
        """Rows as a value."""
        out = self._take(rows.table.shape[1])
        elementwise.lookup(rows.table, rows.index, out.floats)
        return out

    def highway(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Coupled highway update."""
        return self._update(kernels.highway, product, rows, s, scale)

    def highway_uncoupled(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Highway update with its own carry gate."""
        return self._update(kernels.highway_uncoupled, product, rows, s, scale)

    def output(self, product: Product, rows: Rows) -> Float:
        """Counts of the next symbol, valid until the next call."""
        acc = self._multiply(product)
        columns = self._prepared.column_scales[product.name]
        kernels.counts(acc, columns, rows.table, self._prepared.exp2, self._work, self._counts)
        return self._counts

    def floats(self, x: Value) -> Float:
        """Float32 content."""
        return x.floats
