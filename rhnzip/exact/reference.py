"""The reference backend: the arithmetic spelled out in plain torch operations, on any device torch has.

Allowed operations are + - x, tensor / tensor, round, clamp, where, amax, comparison, indexing and integer
arithmetic; a dispatch-mode test fails on any other. Scalars become float32 tensors first: torch multiplies by
the reciprocal when a CUDA tensor is divided by a Python number.

Legend: B lanes, H units, V symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhnzip.errors import BackendError
from rhnzip.exact import constants
from rhnzip.exact.backend import Learner, Settings
from rhnzip.exact.product import ProductMap
from rhnzip.exact.reference_general import Back, ReferenceGeneral
from rhnzip.exact.weights import ExactWeights


@dataclass
class Value:
    """Float32 content, (B, width), and its int8 form; its gradient when learning."""

    floats: Tensor
    int8: Tensor
    gradient: Tensor | None = None


@dataclass
class Rows:
    """Rows of a table, (B, N) or (1, N), and which they are, (B,) or (1,)."""

    name: str
    values: Tensor
    index: Tensor


@dataclass
class Product:
    """A product not yet carried out."""

    name: str
    x: Value


class ReferenceBackend:
    """Plain torch operations."""

    name = "reference"
    parallel = False

    def __init__(self, device: str = "cpu") -> None:
        """Check that torch has the device."""
        self.device = device
        try:
            torch.zeros(1, device=device)
        except Exception as error:
            raise BackendError(f"torch has no device {device!r} here: {error}") from error

    def prepare(self, weights: ExactWeights) -> ReferencePrepared:
        """Copy weights to the device."""
        return ReferencePrepared(weights, torch.device(self.device))

    def learner(self, weights: ExactWeights, inputs: dict[str, str], settings: Settings) -> Learner:
        """Weights that learn."""
        from rhnzip.exact.reference_learner import ReferenceLearner

        return ReferenceLearner(weights, torch.device(self.device), inputs, settings)


class ReferencePrepared:
    """Weights as tensors of the device."""

    def __init__(self, weights: ExactWeights, device: torch.device) -> None:
        """Copy weights to the device."""
        self.device = device
        self.maps = {name: ProductMap(linear.weight, device) for name, linear in weights.linears.items()}
        self.column_scales = {
            n: torch.from_numpy(x.scale.copy()).to(device) for n, x in weights.linears.items()
        }
        self.tables = {n: torch.from_numpy(np.array(t)).to(device) for n, t in weights.tables.items()}
        self.value_scales = {n: torch.tensor(s, dtype=torch.float32) for n, s in weights.scales.items()}
        self.value_scales = {n: s.to(device) for n, s in self.value_scales.items()}
        self.exp2 = torch.tensor(constants.exp2_table(), dtype=torch.int64).to(device)

    def open(self, lanes: int) -> ReferenceOps:
        """Workspace for `lanes` lanes."""
        return ReferenceOps(self, lanes)


class ReferenceOps(ReferenceGeneral):
    """Primitives over one group of lanes."""

    def __init__(self, prepared: ReferencePrepared, lanes: int) -> None:
        """Test the products at this number of lanes."""
        self.lanes = lanes
        self._prepared = prepared
        self._fast = {name: product.check(lanes) for name, product in prepared.maps.items()}
        names = ["TINY", "HUGE", "INT8_MAX", "TANH_LIMIT", "LOG2_E"]
        names += ["NORM_LEVELS", "NORM_LEAST", "NORM_EPSILON", "NORM_FINE"]
        numbers = {name: float(getattr(constants, name)) for name in names}
        numbers |= {"P0": constants.TANH_P[0], "P1": constants.TANH_P[1], "P2": constants.TANH_P[2]}
        numbers |= {"Q0": constants.TANH_Q[0], "Q1": constants.TANH_Q[1], "Q2": constants.TANH_Q[2]}
        numbers |= {"ZERO": 0.0, "HALF": 0.5, "ONE": 1.0, "STEPS": float(1 << constants.LOGIT_FRACTION)}
        numbers |= {"LOGIT_MAX": float(constants.LOGIT_LIMIT << constants.LOGIT_FRACTION)}
        self._c = {n: torch.tensor(v, dtype=torch.float32).to(prepared.device) for n, v in numbers.items()}
        self._first_row = torch.zeros(1, dtype=torch.int64, device=prepared.device)
        self._logit_scale = self._c["LOG2_E"] * self._c["STEPS"]

    def begin_step(self) -> None:
        """Nothing is reused."""

    def symbols(self, symbols: NDArray[np.int64]) -> Tensor:
        """One symbol per lane."""
        return torch.from_numpy(symbols.copy()).to(self._prepared.device)

    def zeros(self, width: int) -> Value:
        """A value of zeros."""
        floats = torch.zeros(self.lanes, width, device=self._prepared.device)
        return Value(floats, floats.to(torch.int8))

    def rows(self, name: str, index: Tensor | None = None) -> Rows:
        """Rows of a table."""
        table = self._prepared.tables[name]
        chosen = self._first_row if index is None else index
        return Rows(name, table[chosen], chosen)

    def dropout(self, _name: str, x: Value) -> Value:
        """Return `x`."""
        return x

    def linear(self, name: str, x: Value) -> Product:
        """Product of `x` with weight `name`."""
        return Product(name, x)

    def _affine(self, product: Product, rows: Rows | None) -> Tensor:
        acc = self._prepared.maps[product.name](product.x.int8, fast=self._fast[product.name])
        scaled = acc.to(torch.float32) * self._prepared.column_scales[product.name]
        return scaled if rows is None else scaled + rows.values

    def _tanh(self, x: Tensor) -> Tensor:
        c = self._c
        x = torch.clamp(x, -c["TANH_LIMIT"], c["TANH_LIMIT"])
        u = x * x
        top = x * (c["P0"] + u * (c["P1"] + u * c["P2"]))
        return top / (c["ONE"] + u * (c["Q0"] + u * (c["Q1"] + u * c["Q2"])))

    def _sigmoid(self, x: Tensor) -> Tensor:
        c = self._c
        return c["HALF"] + c["HALF"] * self._tanh(c["HALF"] * x)

    def _clean(self, x: Tensor) -> Tensor:
        c = self._c
        x = torch.clamp(x, -c["HUGE"], c["HUGE"])
        return torch.where(torch.abs(x) >= c["TINY"], x, c["ZERO"])

    def _int8(self, x: Tensor, scale: str) -> Tensor:
        c = self._c
        scaled = torch.clamp(x * self._prepared.value_scales[scale], -c["INT8_MAX"], c["INT8_MAX"])
        return torch.round(scaled).to(torch.int8)

    def _kept(self, x: Tensor, scale: str) -> Value:
        x = self._clean(x)
        return Value(x, self._int8(x, scale))

    def _plain(self, floats: Tensor, back: Back) -> Value:
        return Value(floats, floats.to(torch.int8))

    def affine(self, product: Product, rows: Rows | None = None) -> Value:
        """A product as a value, with rows added if there are any."""
        return self._plain(self._clean(self._affine(product, rows)), lambda _gradient: None)

    def lookup(self, rows: Rows) -> Value:
        """Rows as a value."""
        return self._plain(rows.values.expand(self.lanes, -1), lambda _gradient: None)

    def highway(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Coupled highway update."""
        a = self._affine(product, rows)
        units = s.floats.shape[1]
        h, t = self._tanh(a[:, :units]), self._sigmoid(a[:, units:])
        return self._kept((h - s.floats) * t + s.floats, scale)

    def highway_uncoupled(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Highway update with its own carry gate."""
        a = self._affine(product, rows)
        units = s.floats.shape[1]
        h, t = self._tanh(a[:, :units]), self._sigmoid(a[:, units : 2 * units])
        return self._kept(h * t + s.floats * self._sigmoid(a[:, 2 * units :]), scale)

    def output(self, product: Product, rows: Rows) -> NDArray[np.float32]:
        """Counts of the next symbol."""
        return self._counts(self._affine(product, rows))

    def _counts(self, logits: Tensor) -> NDArray[np.float32]:
        c = self._c
        x = logits * self._logit_scale
        z = torch.round(torch.clamp(x, -c["LOGIT_MAX"], c["LOGIT_MAX"])).to(torch.int64)
        below = torch.amax(z, dim=1, keepdim=True) - z
        octaves = torch.clamp(below >> constants.LOGIT_FRACTION, max=31)
        e = self._prepared.exp2[below & ((1 << constants.LOGIT_FRACTION) - 1)] >> octaves
        total = torch.sum(e, dim=1, keepdim=True)
        counts = torch.div(e * constants.COUNT_TOTAL, total, rounding_mode="floor")
        # The largest count takes the remainder; of equal ones the first: find it without relying on argmax's
        # ties.
        position = torch.arange(e.shape[1], device=e.device)
        is_largest = e == torch.amax(e, dim=1, keepdim=True)
        first = torch.amin(torch.where(is_largest, position, e.shape[1]), dim=1, keepdim=True)
        rest = constants.COUNT_TOTAL - torch.sum(counts, dim=1, keepdim=True)
        counts = counts + torch.where(position == first, rest, torch.zeros_like(rest))
        return counts.to(torch.float32).cpu().contiguous().numpy()

    def floats(self, x: Value) -> NDArray[np.float32]:
        """Float32 content."""
        return x.floats.cpu().numpy()
