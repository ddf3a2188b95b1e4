"""The general primitives on the reference backend: plain torch, each beside its vector-Jacobian product.

Legend: B lanes, N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rhnzip.exact.reference import ReferencePrepared, Value

Back = Callable[[Tensor], None]
"""Takes the gradient of a value, adds to those of the values it was made from."""


class ReferenceGeneral:
    """Primitives that need values alone; `ReferenceOps` and `ReferenceLearningOps` say where these go."""

    _prepared: ReferencePrepared
    _c: dict[str, Tensor]

    def _tanh(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _sigmoid(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _clean(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _int8(self, x: Tensor, scale: str) -> Tensor:
        raise NotImplementedError

    def _plain(self, floats: Tensor, back: Back) -> Value:
        """A value without an int8 form yet, and what takes its gradient back."""
        raise NotImplementedError

    def _pass(self, value: Value, gradient: Tensor) -> None:
        """Add to the gradient of a value."""
        raise NotImplementedError

    def part(self, x: Value, start: int, stop: int) -> Value:
        """Columns start..stop of a value."""
        width = x.floats.shape[1]

        def back(g: Tensor) -> None:
            self._pass(x, torch.nn.functional.pad(g, (start, width - stop)))

        return self._plain(x.floats[:, start:stop], back)

    def join(self, values: Sequence[Value]) -> Value:
        """Values side by side, in order."""

        def back(g: Tensor) -> None:
            widths = [x.floats.shape[1] for x in values]
            for x, gradient in zip(values, torch.split(g, widths, dim=1), strict=True):
                self._pass(x, gradient)

        return self._plain(torch.cat([x.floats for x in values], dim=1), back)

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent."""
        y = self._clean(self._tanh(x.floats))
        return self._plain(y, lambda g: self._pass(x, g * (self._c["ONE"] - y * y)))

    def sigmoid(self, x: Value) -> Value:
        """Logistic function."""
        y = self._clean(self._sigmoid(x.floats))
        return self._plain(y, lambda g: self._pass(x, self._clean(g * y) * (self._c["ONE"] - y)))

    def add(self, x: Value, y: Value) -> Value:
        """Sum."""

        def back(g: Tensor) -> None:
            self._pass(x, g)
            self._pass(y, g)

        return self._plain(self._clean(x.floats + y.floats), back)

    def multiply(self, x: Value, y: Value) -> Value:
        """Product, element by element."""

        def back(g: Tensor) -> None:
            self._pass(x, g * y.floats)
            self._pass(y, g * x.floats)

        return self._plain(self._clean(x.floats * y.floats), back)

    def mix(self, gate: Value, x: Value, y: Value) -> Value:
        """Gate between two values: (x - y) gate + y."""

        def back(g: Tensor) -> None:
            to_x = self._clean(g * gate.floats)
            self._pass(gate, g * self._clean(x.floats - y.floats))
            self._pass(x, to_x)
            self._pass(y, g - to_x)

        return self._plain(self._clean((x.floats - y.floats) * gate.floats + y.floats), back)

    def zoneout(self, x: Value, y: Value, share: float) -> Value:
        """What zoneout takes of a new value and an old one: its expectation, `share` of the new."""
        first = torch.tensor(share, dtype=torch.float32).to(x.floats.device)
        second = self._c["ONE"] - first

        def back(g: Tensor) -> None:
            self._pass(x, g * first)
            self._pass(y, g * second)

        out = self._clean(self._clean(x.floats * first) + y.floats * second)
        return self._plain(out, back)

    def fresh_dropout(self, _name: str, x: Value) -> Value:
        """Return `x`."""
        return x

    def _normalise(self, x: Value) -> Value:
        """Layer norm without gain and bias, by integer sums."""
        c, size = self._c, x.floats.shape[1]
        n = torch.tensor(float(size), dtype=torch.float32).to(x.floats.device)
        top = torch.maximum(torch.amax(torch.abs(x.floats), dim=1, keepdim=True), c["NORM_LEAST"])
        inverse = c["NORM_LEVELS"] / top
        rounded = torch.round(x.floats * inverse)
        q = rounded.to(torch.int64)
        total, squares = torch.sum(q, dim=1, keepdim=True), torch.sum(q * q, dim=1, keepdim=True)
        spread = (size * squares - total * total).to(torch.float32)
        mean = total.to(torch.float32) / n
        variance = spread / n / n + c["NORM_EPSILON"] * inverse * inverse
        # torch.sqrt is not correctly rounded in float32; in float64, rounded once more, it is
        r = c["ONE"] / variance.double().sqrt().float()
        gain = self._clean(r * inverse)
        y = self._clean((rounded - mean) * r)

        def back(g: Tensor) -> None:
            top = torch.amax(torch.abs(g), dim=1, keepdim=True)
            some = top >= c["TINY"]
            safe = torch.where(some, top, c["ONE"])
            inverse, unit = c["NORM_LEVELS"] / safe, safe / c["NORM_LEVELS"]
            q = torch.round(g * inverse).to(torch.int64)
            fine = torch.round(y * c["NORM_FINE"]).to(torch.int64)
            total, along = torch.sum(q, dim=1, keepdim=True), torch.sum(q * fine, dim=1, keepdim=True)
            mean = self._clean(total.to(torch.float32) / n * unit)
            slope = self._clean(along.to(torch.float32) / n / c["NORM_FINE"] * unit)
            rest = self._clean((g - mean) - y * slope)
            self._pass(x, torch.where(some, gain * rest, c["ZERO"]))

        return self._plain(y, back)

    def _parts(self, x: Value, number: int) -> list[Value]:
        units = x.floats.shape[1] // number
        return [self.part(x, k * units, (k + 1) * units) for k in range(number)]

    def scaled_norm(self, x: Value, gain: Value, shift: Value, parts: int) -> Value:
        """Layer norm of each of so many equal parts of a value, times a gain, plus a shift."""
        normed = self.join([self._normalise(part) for part in self._parts(x, parts)])
        return self.add(self.multiply(normed, gain), shift)

    def lstm_cell(self, a: Value, c: Value) -> Value:
        """New cell of an LSTM, i, j, f, o the quarters of `a`."""
        i, j, f, _ = self._parts(a, 4)
        return self.add(self.multiply(c, self.sigmoid(f)), self.multiply(self.sigmoid(i), self.tanh(j)))

    def lstm_output(self, x: Value, a: Value) -> Value:
        """Output of an LSTM, o the last quarter of `a`."""
        return self.multiply(self.tanh(x), self.sigmoid(self._parts(a, 4)[3]))

    def quantise(self, x: Value, scale: str) -> Value:
        """Give a value its int8 form, by value scale `scale`: linear maps may read it then."""
        x.int8 = self._int8(x.floats, scale)
        return x
