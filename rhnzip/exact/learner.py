"""Learning on the CPU backend: a tape of exact vector-Jacobian products, and the update of int8 weights.

A segment is T steps of B lanes. Going forward, the primitives keep what their gradients need; going back, the
tape runs in reverse program order and adds contributions in that order. Lanes stay apart until the very end:
gradients towards inputs are quantised per lane, so groups of lanes may run on different threads. The gradient
of a weight is then one int8 product over all rows of the segment, quantised per column, so ranges of columns
may run on different threads.

Legend: B lanes, T steps, R = T B rows of a segment, K inner size, N outputs of a linear map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhnzip.exact import kernels
from rhnzip.exact.backend import Settings, update_numbers
from rhnzip.exact.cpu import CpuOps, CpuPrepared, Product, Rows, Value
from rhnzip.exact.cpu_general import Back
from rhnzip.exact.product import ProductMap, fast_product, fast_product_is_right, multiply, portable_product
from rhnzip.exact.weights import ExactWeights, Float

Task = Callable[[], None]

_GRADIENTS = {
    kernels.highway: kernels.highway_gradient,
    kernels.highway_uncoupled: kernels.highway_uncoupled_gradient,
}

OUTPUTS = 256
"""Outputs of a linear map whose gradient is computed at a time: it stays in the second-level cache."""


class CpuLearner(CpuPrepared):
    """Weights that learn: float32 masters, their moments, and the int8 form that the products use."""

    def __init__(self, weights: ExactWeights, inputs: dict[str, str], settings: Settings) -> None:
        """Start from `weights`; `inputs` names the value that each linear map reads."""
        super().__init__(weights)
        self.settings = settings
        self._initial = weights
        self.input_scales = {name: self.value_scales[inputs[name]] for name in weights.linears}
        self.theta: dict[str, Float] = {}
        self.moments: dict[str, Float] = {}
        self.anchors: dict[str, Float] = {}
        self.stored: dict[str, NDArray[np.int8]] = {}
        for name in weights.linears:
            self.stored[name] = self.maps[name].weight.t().numpy()
            for kind in (self.theta, self.moments, self.anchors):
                kind[name] = np.empty(self.stored[name].shape, np.float32)
        for name, table in self.tables.items():
            for kind in (self.moments, self.anchors):
                kind[name] = np.empty_like(table)
        self.reset()

    def reset(self) -> None:
        """Go back to the initial weights; forget all moments."""
        self.updates = 0
        for name, linear in self._initial.linears.items():
            self.stored[name][:] = linear.weight.T
            self.column_scales[name][:] = linear.scale
            unit = linear.scale * self.input_scales[name]
            kernels.weights(self.stored[name], unit, self.theta[name])
            self.anchors[name][:] = self.theta[name]
            self.moments[name][:] = 0
        for name, table in self.tables.items():
            table[:] = self._initial.tables[name]
            self.anchors[name][:] = table
            self.moments[name][:] = 0

    def open_segment(self, lanes: int, steps: int, parts: list[slice]) -> CpuSegment:
        """Buffers for a block's segments; each of `parts`, groups of lanes, may run on its own thread."""
        return CpuSegment(self, lanes, steps, parts)


class _Lookup:
    """What a segment added of a table, and the gradients of it: shapes (T, B, ...)."""

    def __init__(self, columns: int, shape: tuple[int, int]) -> None:
        self.table = ""
        self.gradients = np.zeros((*shape, columns), np.float32)
        self.index = np.zeros(shape, np.int64)


class _Use(_Lookup):
    """One linear map's rows in a segment, and those of the table added to it."""

    def __init__(self, product: ProductMap, shape: tuple[int, int]) -> None:
        super().__init__(product.columns, shape)
        self.inputs = torch.zeros(*shape, product.inner, dtype=torch.int8)
        self.sums = torch.zeros(*shape, product.columns, dtype=torch.int32)


class CpuSegment:
    """Buffers of a block's segments: T steps of B lanes, in groups of lanes."""

    def __init__(self, learner: CpuLearner, lanes: int, steps: int, parts: list[slice]) -> None:
        """Allocate; nothing here outlives the block."""
        self.learner, self.lanes, self.steps = learner, lanes, steps
        # allocated here and not at first use: groups meet a linear map at the same time on different threads
        self.uses = {name: _Use(product, (steps, lanes)) for name, product in learner.maps.items()}
        self.lookups: dict[str, _Lookup] = {}
        self.groups = [LearningOps(self, part) for part in parts]
        self._updates: list[_Update] = []

    def update_tasks(self, threads: int) -> list[Task]:
        """Tasks that together take one step on all weights; any order, any thread."""
        if not self._updates:
            self._updates += [_Update(self.learner, "", lookup) for lookup in self.lookups.values()]
            self._updates += [_Update(self.learner, name, use) for name, use in self.uses.items()]
        self.learner.updates += 1
        numbers = update_numbers(self.learner.settings, self.learner.updates)
        for update in self._updates:
            update.begin(numbers)

        def task(part: int) -> None:
            for update in self._updates:
                update.run(update.columns * part // threads, update.columns * (part + 1) // threads)

        return [partial(task, part) for part in range(threads)]


class _Update:
    """Steps on a linear map and the table added to it, or on either; any columns on any thread."""

    def __init__(self, learner: CpuLearner, name: str, use: _Lookup) -> None:
        self._learner, self._name, self._table = learner, name, use.table
        self._inputs = use.inputs.flatten(0, 1) if isinstance(use, _Use) else None
        self._index = use.index.reshape(-1)
        self._gradients = use.gradients.reshape(len(self._index), -1)
        # of a table of one row; those of longer ones differ from segment to segment
        self._touched, self._slots = np.zeros(1, np.int64), np.zeros_like(self._index)
        self.columns = self._gradients.shape[1]
        self._q = torch.empty(self.columns, len(self._index), dtype=torch.int8)
        self._scale = np.empty(self.columns, np.float32)

    def begin(self, numbers: Float) -> None:
        """Start the step of a segment, at this step's rate and decay."""
        self._numbers = numbers
        if self._table and len(self._learner.tables[self._table]) > 1:
            self._touched, self._slots = np.unique(self._index, return_inverse=True)

    def run(self, start: int, stop: int) -> None:
        """Take the step on columns start..stop."""
        if start == stop:
            return
        kernels.quantise_columns(self._gradients, start, stop, self._q.numpy(), self._scale)
        if self._table:
            self._update_table(start, stop)
        if self._inputs is not None:
            for first in range(start, stop, OUTPUTS):
                self._update_linear(slice(first, min(first + OUTPUTS, stop)), self._inputs)

    def _update_table(self, start: int, stop: int) -> None:
        learner, table = self._learner, self._learner.tables[self._table]
        kernels.update_table(
            self._q.numpy(),
            self._scale,
            self._slots,
            self._touched,
            start,
            stop,
            table,
            learner.moments[self._table],
            learner.anchors[self._table],
            self._numbers,
        )

    def _update_linear(self, part: slice, inputs: Tensor) -> None:
        learner, name = self._learner, self._name
        kernels.update_linear(
            multiply(self._q[part], inputs).numpy(),
            self._scale[part],
            learner.input_scales[name],
            learner.theta[name][part],
            learner.moments[name][part],
            learner.anchors[name][part],
            self._numbers,
            learner.stored[name][part],
            learner.column_scales[name][part],
        )


class LearningOps(CpuOps):
    """Primitives over one group of lanes that keep a tape."""

    def __init__(self, segment: CpuSegment, part: slice) -> None:
        """A view of the segment's buffers for the lanes `part`."""
        super().__init__(segment.learner, part.stop - part.start)
        self._segment, self._part = segment, part
        self._learner = segment.learner
        self._values: list[list[Value]] = [[] for _ in range(segment.steps)]
        self._tape: list[Task] = []
        self._step = -1
        self._row_scale = np.empty(self.lanes, np.float32)
        self._backward: dict[str, tuple[Tensor, Tensor, Float, bool]] = {}
        for name, product in segment.learner.maps.items():
            rows, inner, columns = self.lanes, product.inner, product.columns
            right = fast_product_is_right(rows, columns, inner, False, "cpu")
            self._backward[name] = (
                torch.empty(rows, columns, dtype=torch.int8),
                torch.empty(rows, inner, dtype=torch.int32),
                np.empty(columns, np.float32),
                right,
            )

    def begin_segment(self, state: tuple[Value, ...]) -> tuple[Value, ...]:
        """Clear the tape; returns the carried state in a place of its own."""
        self._tape.clear()
        self._step = -1
        carried = []
        for value in state:
            copy = self._value(value.width)
            copy.floats[:] = value.floats
            copy.int8[:] = value.int8
            carried.append(copy)
        return tuple(carried)

    def begin_step(self) -> None:
        """Start a step of the segment."""
        self._step += 1
        self._taken = 0

    def _arena(self) -> list[Value]:
        """Values of this step: all of a segment's stay."""
        return self._values[self._step]

    def _record(self, out: Value, back: Back) -> None:
        gradient = self._gradient(out)
        gradient.fill(0)
        self._tape.append(partial(back, gradient))

    def _gradient(self, value: Value) -> Float:
        if value.gradient is None:
            value.gradient = np.zeros_like(value.floats)
        return value.gradient

    def _multiply_kept(self, product: Product, rows: Rows | None) -> tuple[_Use, Any]:
        use = self._segment.uses[product.name]
        at = (self._step, self._part)
        use.inputs[at].copy_(product.x.tensor)
        if rows is not None:
            use.table = rows.name
            use.index[at] = rows.index
        sums = use.sums[at]
        self._prepared.maps[product.name](product.x.tensor, sums, fast=self._fast[product.name])
        return use, sums.numpy()

    def rows(self, name: str, index: NDArray[np.int64] | None = None) -> Rows:
        """Rows of a table; `index` may change once the step is over."""
        return super().rows(name, None if index is None else index.copy())

    def affine(self, product: Product, rows: Rows | None = None) -> Value:
        """A product as a value, with rows added if there are any."""
        use, acc = self._multiply_kept(product, rows)
        out = self._affine(acc, self._prepared.column_scales[product.name], rows)
        da = use.gradients[self._step, self._part]

        def back(g: Float) -> None:
            da[:] = g
            self._to_input(product.name, da, product.x)

        self._record(out, back)
        return out

    def lookup(self, rows: Rows) -> Value:
        """Rows as a value."""
        out = super().lookup(rows)
        shape = (self._segment.steps, self._segment.lanes)
        use = self._segment.lookups.setdefault(rows.name, _Lookup(out.width, shape))
        use.table = rows.name
        use.index[self._step, self._part] = rows.index
        da = use.gradients[self._step, self._part]

        def back(g: Float) -> None:
            da[:] = g

        self._record(out, back)
        return out

    def _update(self, kernel: Any, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        use, acc = self._multiply_kept(product, rows)
        out = self._take(s.width)
        prepared, name = self._prepared, product.name
        columns, quant = prepared.column_scales[name], prepared.value_scales[scale]
        kernel(acc, columns, rows.table, rows.index, s.floats, quant, out.floats, out.int8)
        backward = _GRADIENTS[kernel]
        da = use.gradients[self._step, self._part]

        def back(gradient: Float) -> None:
            ds = self._gradient(s)
            backward(acc, columns, rows.table, rows.index, s.floats, gradient, da, ds)
            self._to_input(name, da, product.x)

        self._record(out, back)
        return out

    def _to_input(self, name: str, da: Float, x: Value) -> None:
        """Add da times the transposed weight to the gradient of `x`."""
        q, acc, work, right = self._backward[name]
        learner = self._learner
        kernels.quantise_rows(
            da, learner.column_scales[name], learner.input_scales[name], q.numpy(), self._row_scale, work
        )
        weight = learner.maps[name].weight.t()
        if right:
            fast_product(q, weight, acc)
        else:
            acc.copy_(portable_product(q, weight))
        kernels.add_scaled_rows(acc.numpy(), self._row_scale, self._gradient(x))

    def output(self, product: Product, rows: Rows) -> Float:
        """Counts of the next symbol; `learn` later tells which it was."""
        use, acc = self._multiply_kept(product, rows)
        columns = self._prepared.column_scales[product.name]
        kernels.counts(acc, columns, rows.table, self._prepared.exp2, self._work, self._counts)
        self._pending = (product, use.gradients[self._step, self._part])
        return self._counts

    def learn(self, symbols: NDArray[np.int64], shares: Float) -> None:
        """Tell the symbols that the last counts were for, and the share of each lane's gradient."""
        product, da = self._pending
        kernels.counts_gradient(self._counts, symbols, shares, da)
        self._tape.append(lambda: self._to_input(product.name, da, product.x))

    def backward(self) -> None:
        """Run the tape in reverse."""
        for task in reversed(self._tape):
            task()
