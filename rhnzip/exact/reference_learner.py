"""Learning on the reference backend: the tape and update of `learner`, spelled out in plain torch operations.

Legend: B lanes, T steps, R = T B rows of a segment, K inner size, N outputs of a linear map.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rhnzip.exact.backend import Settings, update_numbers
from rhnzip.exact.product import multiply
from rhnzip.exact.reference import Product, ReferenceOps, ReferencePrepared, Rows, Value
from rhnzip.exact.reference_general import Back
from rhnzip.exact.weights import ExactWeights, Float


class ReferenceLearner(ReferencePrepared):
    """Weights that learn: float32 masters, their moments, and the int8 form that the products use."""

    def __init__(
        self, weights: ExactWeights, device: torch.device, inputs: dict[str, str], settings: Settings
    ) -> None:
        """Start from `weights`; `inputs` names the value that each linear map reads."""
        super().__init__(weights, device)
        self.settings = settings
        self._initial = weights
        self.input_scales = {name: self.value_scales[inputs[name]] for name in weights.linears}
        self._start: dict[str, Tensor] = {}
        clean = ReferenceOps(self, 1)._clean
        for name, linear in weights.linears.items():
            unit = torch.from_numpy(linear.scale.copy()).to(device) * self.input_scales[name]
            start = self.maps[name].weight.t().to(torch.float32) * unit[:, None]
            self._start[name] = clean(start)
        for name, table in self.tables.items():
            self._start[name] = table.clone()
        self.reset()

    def reset(self) -> None:
        """Go back to the initial weights; forget all moments."""
        self.updates = 0
        self.anchors = {name: start.clone() for name, start in self._start.items()}
        self.moments = {name: torch.zeros_like(start) for name, start in self._start.items()}
        self.theta = {name: self._start[name].clone() for name in self.maps}
        for name, linear in self._initial.linears.items():
            self.maps[name].replace(torch.from_numpy(linear.weight).to(self.device).t().contiguous())
            self.column_scales[name] = torch.from_numpy(linear.scale.copy()).to(self.device)
        for name in self.tables:
            self.tables[name] = self._start[name].clone()

    def open_segment(self, lanes: int, steps: int, parts: list[slice]) -> ReferenceSegment:
        """Buffers for a block's segments; the reference works on all lanes at once."""
        if len(parts) != 1:
            raise ValueError("the reference backend takes all lanes in one group")
        return ReferenceSegment(self, lanes, steps)


class _Use:
    """One linear map's rows in a segment, or those of a table alone, step by step."""

    def __init__(self, table: str, steps: int) -> None:
        self.table = table
        self.inputs: list[Tensor] = []
        self.index: list[Tensor] = []
        self.gradients: list[Tensor] = [torch.empty(0)] * steps


class ReferenceSegment:
    """What a segment of T steps of B lanes keeps."""

    def __init__(self, learner: ReferenceLearner, lanes: int, steps: int) -> None:
        """Nothing here outlives the block."""
        self.learner, self.lanes, self.steps = learner, lanes, steps
        self.uses: dict[str, _Use] = {}
        self.lookups: dict[str, _Use] = {}
        self.groups = [ReferenceLearningOps(self)]

    def update_tasks(self, _threads: int) -> list[Callable[[], None]]:
        """One task that takes one step on all weights."""
        return [self._update]

    def _update(self) -> None:
        learner = self.learner
        learner.updates += 1
        settings = update_numbers(learner.settings, learner.updates)
        numbers = torch.from_numpy(settings).to(learner.device)
        arithmetic = self.groups[0]
        arithmetic.pulls = bool(settings[4:].any())
        uses = [("", use) for use in self.lookups.values()] + list(self.uses.items())
        for name, use in uses:
            q, scale = arithmetic.quantise_rows(torch.cat(use.gradients).t().contiguous())
            if use.table:
                arithmetic.update_table(use.table, q, scale, torch.cat(use.index), numbers)
            if name:
                arithmetic.update_linear(name, multiply(q, torch.cat(use.inputs)), scale, numbers)


class ReferenceLearningOps(ReferenceOps):
    """Primitives over all lanes that keep a tape."""

    _prepared: ReferenceLearner

    def __init__(self, segment: ReferenceSegment) -> None:
        """Start with an empty tape."""
        super().__init__(segment.learner, segment.lanes)
        self._segment = segment
        self._tape: list[Callable[[], None]] = []
        self._step = -1
        self.pulls = False
        device = segment.learner.device
        self._unit = torch.tensor(2.0**-24, dtype=torch.float32).to(device)
        self._max_gradient = torch.tensor(2.0**20, dtype=torch.float32).to(device)

    def begin_segment(self, state: tuple[Value, ...]) -> tuple[Value, ...]:
        """Clear the tape; the carried state starts without a gradient."""
        self._tape.clear()
        self._segment.uses.clear()
        self._segment.lookups.clear()
        self._step = -1
        return tuple(Value(value.floats, value.int8) for value in state)

    def begin_step(self) -> None:
        """Start a step of the segment."""
        self._step += 1

    def _affine_kept(self, product: Product, rows: Rows | None) -> tuple[_Use, Tensor]:
        name = rows.name if rows else ""
        use = self._segment.uses.setdefault(product.name, _Use(name, self._segment.steps))
        use.inputs.append(product.x.int8)
        if rows:
            use.index.append(rows.index.expand(self.lanes))
        return use, self._affine(product, rows)

    def _plain(self, floats: Tensor, back: Back) -> Value:
        out = super()._plain(floats, back)
        self._tape.append(lambda: back(self._gradient(out)))
        return out

    def _pass(self, value: Value, gradient: Tensor) -> None:
        value.gradient = self._clean(self._gradient(value) + gradient)

    def affine(self, product: Product, rows: Rows | None = None) -> Value:
        """A product as a value, with rows added if there are any."""
        use, a = self._affine_kept(product, rows)
        step = self._step

        def back(g: Tensor) -> None:
            use.gradients[step] = g
            self._to_input(product, g)

        return self._plain(self._clean(a), back)

    def lookup(self, rows: Rows) -> Value:
        """Rows as a value."""
        use = self._segment.lookups.setdefault(rows.name, _Use(rows.name, self._segment.steps))
        use.index.append(rows.index.expand(self.lanes))
        step = self._step

        def back(g: Tensor) -> None:
            use.gradients[step] = g

        return self._plain(rows.values.expand(self.lanes, -1), back)

    def highway(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Coupled highway update."""
        use, a = self._affine_kept(product, rows)
        units, step = s.floats.shape[1], self._step
        h, t = self._tanh(a[:, :units]), self._sigmoid(a[:, units:])
        out = self._kept((h - s.floats) * t + s.floats, scale)

        def back() -> None:
            one, clean = self._c["ONE"], self._clean
            g = clean(self._gradient(out))
            gt = clean(g * t)
            da_t = clean(clean(gt * (one - t)) * (h - s.floats))
            s.gradient = clean(self._gradient(s) + (g - gt))
            use.gradients[step] = torch.cat((clean(gt * (one - h * h)), da_t), dim=1)
            self._to_input(product, use.gradients[step])

        self._tape.append(back)
        return out

    def highway_uncoupled(self, product: Product, rows: Rows, s: Value, scale: str) -> Value:
        """Highway update with its own carry gate."""
        use, a = self._affine_kept(product, rows)
        units, step = s.floats.shape[1], self._step
        h, t = self._tanh(a[:, :units]), self._sigmoid(a[:, units : 2 * units])
        c = self._sigmoid(a[:, 2 * units :])
        out = self._kept(h * t + s.floats * c, scale)

        def back() -> None:
            one, clean = self._c["ONE"], self._clean
            g = clean(self._gradient(out))
            gt, gc = clean(g * t), clean(g * c)
            da_t = clean(clean(gt * (one - t)) * h)
            da_c = clean(clean(gc * (one - c)) * s.floats)
            s.gradient = clean(self._gradient(s) + gc)
            use.gradients[step] = torch.cat((clean(gt * (one - h * h)), da_t, da_c), dim=1)
            self._to_input(product, use.gradients[step])

        self._tape.append(back)
        return out

    def _gradient(self, value: Value) -> Tensor:
        return torch.zeros_like(value.floats) if value.gradient is None else value.gradient

    def quantise_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows to int8 by their largest magnitude: (q, scale of each row)."""
        c = self._c
        top = torch.amax(torch.abs(x), dim=1)
        some = top >= c["TINY"]
        inverse = c["INT8_MAX"] / torch.where(some, top, c["ONE"])
        q = torch.round(torch.clamp(x * inverse[:, None], -c["INT8_MAX"], c["INT8_MAX"]))
        q = torch.where(some[:, None], q, c["ZERO"]).to(torch.int8)
        return q, torch.where(some, top / c["INT8_MAX"], c["ZERO"])

    def _to_input(self, product: Product, da: Tensor) -> None:
        learner, name = self._prepared, product.name
        q, row_scale = self.quantise_rows(da * learner.column_scales[name])
        row_scale = row_scale * learner.input_scales[name]
        acc = multiply(q, learner.maps[name].weight.t())
        x = product.x
        x.gradient = self._clean(self._gradient(x) + acc.to(torch.float32) * row_scale[:, None])

    def output(self, product: Product, rows: Rows) -> NDArray[np.float32]:
        """Counts of the next symbol; `learn` later tells which it was."""
        use, a = self._affine_kept(product, rows)
        counts: Float = self._counts(a)
        self._pending = (product, use, torch.from_numpy(counts.copy()).to(self._prepared.device))
        return counts

    def learn(self, symbols: NDArray[np.int64], shares: Float) -> None:
        """Tell the symbols that the last counts were for, and the share of each lane's gradient."""
        product, use, counts = self._pending
        device, step = self._prepared.device, self._step
        alphabet = torch.arange(counts.shape[1], device=device)
        chosen = torch.from_numpy(symbols.copy()).to(device)[:, None] == alphabet
        da = (counts + self._c["ONE"]) * self._unit - torch.where(chosen, self._c["ONE"], self._c["ZERO"])
        factor = torch.from_numpy(shares.copy()).to(device)[:, None]
        da = torch.where(factor == self._c["ZERO"], self._c["ZERO"], da * factor)
        use.gradients[step] = da
        self._tape.append(lambda: self._to_input(product, da))

    def backward(self) -> None:
        """Run the tape in reverse."""
        for task in reversed(self._tape):
            task()

    def _stepped(self, theta: Tensor, g: Tensor, v: Tensor, numbers: Tensor) -> Tensor:
        # torch.sqrt is not correctly rounded in float32; in float64, rounded once more, it is
        root = v.double().sqrt().float()
        return self._clean(theta - numbers[0] * (g / (root + numbers[3])))

    def _pulled(self, theta: Tensor, name: str, numbers: Tensor) -> Tensor:
        """Weights moved towards their anchors; then the anchors follow."""
        if not self.pulls:
            return theta
        anchors = self._prepared.anchors
        theta = self._clean(theta + numbers[4] * (anchors[name] - theta))
        anchors[name] = self._clean(anchors[name] + numbers[5] * (theta - anchors[name]))
        return theta

    def _second_moment(self, v: Tensor, g: Tensor, numbers: Tensor) -> Tensor:
        g = torch.clamp(g, -self._max_gradient, self._max_gradient)
        square = g * g
        return self._clean(torch.where(v == self._c["ZERO"], square, numbers[1] * v + numbers[2] * square))

    def update_linear(self, name: str, dw: Tensor, column_scale: Tensor, numbers: Tensor) -> None:
        """Take one step on a linear map and quantise it anew; dw int32 (N, K)."""
        learner = self._prepared
        scale = learner.input_scales[name]
        g = self._clean(dw.to(torch.float32) * (column_scale / scale)[:, None])
        v = self._second_moment(learner.moments[name], g, numbers)
        theta = self._pulled(self._stepped(learner.theta[name], g, v, numbers), name, numbers)
        learner.moments[name], learner.theta[name] = v, theta
        q, step = self.quantise_rows(theta)
        learner.maps[name].replace(q)
        learner.column_scales[name] = step / scale

    def update_table(self, name: str, q: Tensor, scale: Tensor, index: Tensor, numbers: Tensor) -> None:
        """Take one step on the rows of a table that the segment used; the moments of the others fade."""
        learner = self._prepared
        table, v = learner.tables[name], learner.moments[name]
        sums = torch.zeros(table.shape, dtype=torch.int32, device=table.device)
        sums = sums.index_add(0, index, q.t().to(torch.int32))
        rows = torch.unique(index)
        g = self._clean(sums[rows].to(torch.float32) * scale)
        moment = self._second_moment(v[rows], g, numbers)
        learner.moments[name] = v = self._clean(numbers[1] * v)
        v[rows] = moment
        table[rows] = self._stepped(table[rows], g, moment, numbers)
        learner.tables[name] = self._pulled(table, name, numbers)
