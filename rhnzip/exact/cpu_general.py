"""The general primitives on the CPU backend, each beside its vector-Jacobian product.

Frozen and learning workspaces share them: `_record` forgets the product where nothing is learned.

Legend: B lanes, N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rhnzip.exact import elementwise

if TYPE_CHECKING:
    from rhnzip.exact.cpu import CpuPrepared, Value
    from rhnzip.exact.weights import Float

Back = Callable[["Float"], None]
"""Takes the gradient of a value, adds to those of the values it was made from."""


class CpuGeneral:
    """Primitives that need values alone; `CpuOps` and `LearningOps` say where these come from."""

    _prepared: CpuPrepared

    def _take(self, width: int) -> Value:
        raise NotImplementedError

    def _record(self, out: Value, back: Back) -> None:
        raise NotImplementedError

    def _gradient(self, value: Value) -> Float:
        raise NotImplementedError

    def part(self, x: Value, start: int, stop: int) -> Value:
        """Columns start..stop of a value."""
        out = self._take(stop - start)
        elementwise.part(x.floats, start, out.floats)
        self._record(out, lambda g: elementwise.part_gradient(g, start, self._gradient(x)))
        return out

    def join(self, values: Sequence[Value]) -> Value:
        """Values side by side, in order."""
        starts = np.cumsum([0] + [x.width for x in values])
        out = self._take(int(starts[-1]))
        for x, start in zip(values, starts, strict=False):
            elementwise.join(x.floats, start, out.floats)

        def back(g: Float) -> None:
            for x, start in zip(values, starts, strict=False):
                elementwise.join_gradient(g, start, self._gradient(x))

        self._record(out, back)
        return out

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent."""
        out = self._take(x.width)
        elementwise.tanh(x.floats, out.floats)
        self._record(out, lambda g: elementwise.tanh_gradient(out.floats, g, self._gradient(x)))
        return out

    def sigmoid(self, x: Value) -> Value:
        """Logistic function."""
        out = self._take(x.width)
        elementwise.sigmoid(x.floats, out.floats)
        self._record(out, lambda g: elementwise.sigmoid_gradient(out.floats, g, self._gradient(x)))
        return out

    def add(self, x: Value, y: Value) -> Value:
        """Sum."""
        out = self._take(x.width)
        elementwise.add(x.floats, y.floats, out.floats)

        def back(g: Float) -> None:
            for value in (x, y):
                gradient = self._gradient(value)
                elementwise.add(gradient, g, gradient)

        self._record(out, back)
        return out

    def multiply(self, x: Value, y: Value) -> Value:
        """Product, element by element."""
        out = self._take(x.width)
        elementwise.multiply(x.floats, y.floats, out.floats)

        def back(g: Float) -> None:
            elementwise.multiply_gradient(y.floats, g, self._gradient(x))
            elementwise.multiply_gradient(x.floats, g, self._gradient(y))

        self._record(out, back)
        return out

    def mix(self, gate: Value, x: Value, y: Value) -> Value:
        """Gate between two values: (x - y) gate + y."""
        out = self._take(x.width)
        elementwise.mix(gate.floats, x.floats, y.floats, out.floats)

        def back(g: Float) -> None:
            gradients = (self._gradient(gate), self._gradient(x), self._gradient(y))
            elementwise.mix_gradient(gate.floats, x.floats, y.floats, g, *gradients)

        self._record(out, back)
        return out

    def zoneout(self, x: Value, y: Value, share: float) -> Value:
        """What zoneout takes of a new value and an old one: its expectation, `share` of the new."""
        out = self._take(x.width)
        first, second = np.float32(share), np.float32(1) - np.float32(share)
        out.floats.fill(0)
        elementwise.add_scaled(x.floats, first, out.floats)
        elementwise.add_scaled(y.floats, second, out.floats)

        def back(g: Float) -> None:
            elementwise.add_scaled(g, first, self._gradient(x))
            elementwise.add_scaled(g, second, self._gradient(y))

        self._record(out, back)
        return out

    def fresh_dropout(self, _name: str, x: Value) -> Value:
        """Return `x`."""
        return x

    def scaled_norm(self, x: Value, gain: Value, shift: Value, parts: int) -> Value:
        """Layer norm of each of so many equal parts of a value, times a gain, plus a shift."""
        out, units = self._take(x.width), np.empty((len(x.floats), parts), np.float32)
        normed = np.empty_like(x.floats)
        elementwise.scaled_norm(x.floats, gain.floats, shift.floats, normed, units, out.floats)

        def back(g: Float) -> None:
            gradients = (self._gradient(x), self._gradient(gain), self._gradient(shift))
            elementwise.scaled_norm_gradient(normed, units, gain.floats, g, *gradients)

        self._record(out, back)
        return out

    def lstm_cell(self, a: Value, c: Value) -> Value:
        """New cell of an LSTM, i, j, f, o the quarters of `a`."""
        out = self._take(c.width)
        elementwise.lstm_cell(a.floats, c.floats, out.floats)

        def back(g: Float) -> None:
            elementwise.lstm_cell_gradient(a.floats, c.floats, g, self._gradient(a), self._gradient(c))

        self._record(out, back)
        return out

    def lstm_output(self, x: Value, a: Value) -> Value:
        """Output of an LSTM, o the last quarter of `a`."""
        out = self._take(x.width)
        elementwise.lstm_output(x.floats, a.floats, out.floats)

        def back(g: Float) -> None:
            elementwise.lstm_output_gradient(x.floats, a.floats, g, self._gradient(x), self._gradient(a))

        self._record(out, back)
        return out

    def quantise(self, x: Value, scale: str) -> Value:
        """Give a value its int8 form, by value scale `scale`: linear maps may read it then."""
        elementwise.quantise(x.floats, self._prepared.value_scales[scale], x.int8)
        return x
