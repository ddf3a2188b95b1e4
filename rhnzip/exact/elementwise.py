"""CPU kernels of the general primitives: the parts that LSTM, state gates and hypernetworks are made of.

The highway update has fused kernels of its own (`kernels`); here every function is one pass over its arrays.
The rules are those of `kernels`: single binary32 operations, sums over integers alone, every kept value zero
or of magnitude 2^-60..2^40. A `..._gradient` adds to the gradients it is given.

Legend: B lanes, N columns, R rows of a table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rhnzip.exact import constants
from rhnzip.exact.compiled import compiled
from rhnzip.exact.kernels import _absmax, _int8, _keep, _round, _sigmoid, _tanh

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TINY = np.float32(constants.TINY)
_LEVELS = np.float32(constants.NORM_LEVELS)
_LEAST_TOP = np.float32(constants.NORM_LEAST)
_EPSILON = np.float32(constants.NORM_EPSILON)
_FINE = np.float32(constants.NORM_FINE)


@compiled()
def affine(acc: Any, scale: Any, out: Any) -> None:
    """Integer sums to values: int32 (B, N), float32 (N,), float32 (B, N)."""
    lanes, size = acc.shape
    for b in range(lanes):
        acc_b, out_b = acc[b], out[b]
        for i in range(size):
            out_b[i] = _keep(np.float32(acc_b[i]) * scale[i])


@compiled()
def affine_rows(acc: Any, scale: Any, table: Any, index: Any, out: Any) -> None:
    """The same, with a row of `table`, float32 (R, N), added to each lane: index int64 (B,)."""
    lanes, size = acc.shape
    for b in range(lanes):
        acc_b, row, out_b = acc[b], table[index[b]], out[b]
        for i in range(size):
            out_b[i] = _keep(np.float32(acc_b[i]) * scale[i] + row[i])


@compiled()
def lookup(table: Any, index: Any, out: Any) -> None:
    """Rows of a table: float32 (R, N), int64 (B,), float32 (B, N)."""
    lanes, size = out.shape
    for b in range(lanes):
        row, out_b = table[index[b]], out[b]
        for i in range(size):
            out_b[i] = row[i]


@compiled()
def part(x: Any, start: Any, out: Any) -> None:
    """Columns of `x` from `start` on: float32 (B, M), (B, N)."""
    lanes, size = out.shape
    for b in range(lanes):
        x_b, out_b = x[b], out[b]
        for i in range(size):
            out_b[i] = x_b[start + i]


@compiled()
def part_gradient(g: Any, start: Any, dx: Any) -> None:
    """Add to those columns of dx."""
    lanes, size = g.shape
    for b in range(lanes):
        g_b, dx_b = g[b], dx[b]
        for i in range(size):
            dx_b[start + i] = _keep(dx_b[start + i] + g_b[i])


@compiled()
def join(x: Any, start: Any, out: Any) -> None:
    """Copy x to the columns of `out` from `start` on: float32 (B, N), (B, M)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, out_b = x[b], out[b]
        for i in range(size):
            out_b[start + i] = x_b[i]


@compiled()
def join_gradient(g: Any, start: Any, dx: Any) -> None:
    """Add those columns of g to dx."""
    lanes, size = dx.shape
    for b in range(lanes):
        g_b, dx_b = g[b], dx[b]
        for i in range(size):
            dx_b[i] = _keep(dx_b[i] + g_b[start + i])


@compiled()
def quantise(x: Any, scale: Any, q: Any) -> None:
    """int8 form of a value with a static scale: float32 (B, N), scalar, int8 (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, q_b = x[b], q[b]
        for i in range(size):
            q_b[i] = _int8(x_b[i], scale)


@compiled()
def tanh(x: Any, out: Any) -> None:
    """Hyperbolic tangent, all (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, out_b = x[b], out[b]
        for i in range(size):
            out_b[i] = _keep(_tanh(x_b[i]))


@compiled()
def tanh_gradient(y: Any, g: Any, dx: Any) -> None:
    """With y = tanh(x): dx += g (1 - y^2)."""
    lanes, size = y.shape
    for b in range(lanes):
        y_b, g_b, dx_b = y[b], g[b], dx[b]
        for i in range(size):
            dx_b[i] = _keep(dx_b[i] + g_b[i] * (_ONE - y_b[i] * y_b[i]))


@compiled()
def sigmoid(x: Any, out: Any) -> None:
    """Logistic function, all (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, out_b = x[b], out[b]
        for i in range(size):
            out_b[i] = _keep(_sigmoid(x_b[i]))


@compiled()
def sigmoid_gradient(y: Any, g: Any, dx: Any) -> None:
    """With y = sigmoid(x): dx += g y (1 - y)."""
    lanes, size = y.shape
    for b in range(lanes):
        y_b, g_b, dx_b = y[b], g[b], dx[b]
        for i in range(size):
            dx_b[i] = _keep(dx_b[i] + _keep(g_b[i] * y_b[i]) * (_ONE - y_b[i]))


@compiled()
def add(x: Any, y: Any, out: Any) -> None:
    """Sum of two values, all (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, y_b, out_b = x[b], y[b], out[b]
        for i in range(size):
            out_b[i] = _keep(x_b[i] + y_b[i])


@compiled()
def multiply(x: Any, y: Any, out: Any) -> None:
    """Product of two values element by element, all (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, y_b, out_b = x[b], y[b], out[b]
        for i in range(size):
            out_b[i] = _keep(x_b[i] * y_b[i])


@compiled()
def multiply_gradient(other: Any, g: Any, dx: Any) -> None:
    """Add g times the other factor to dx."""
    lanes, size = g.shape
    for b in range(lanes):
        other_b, g_b, dx_b = other[b], g[b], dx[b]
        for i in range(size):
            dx_b[i] = _keep(dx_b[i] + g_b[i] * other_b[i])


@compiled()
def mix(gate: Any, x: Any, y: Any, out: Any) -> None:
    """Gate between two values: (x - y) gate + y, all (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        gate_b, x_b, y_b, out_b = gate[b], x[b], y[b], out[b]
        for i in range(size):
            out_b[i] = _keep((x_b[i] - y_b[i]) * gate_b[i] + y_b[i])


@compiled()
def mix_gradient(gate: Any, x: Any, y: Any, g: Any, dgate: Any, dx: Any, dy: Any) -> None:
    """Add to all three: dgate += g (x - y), dx += g gate, dy += g - g gate."""
    lanes, size = g.shape
    for b in range(lanes):
        gate_b, x_b, y_b, g_b = gate[b], x[b], y[b], g[b]
        dgate_b, dx_b, dy_b = dgate[b], dx[b], dy[b]
        for i in range(size):
            to_x = _keep(g_b[i] * gate_b[i])
            dgate_b[i] = _keep(dgate_b[i] + g_b[i] * _keep(x_b[i] - y_b[i]))
            dx_b[i] = _keep(dx_b[i] + to_x)
            dy_b[i] = _keep(dy_b[i] + (g_b[i] - to_x))


@compiled()
def add_scaled(x: Any, factor: Any, out: Any) -> None:
    """Add x times a number to `out`: float32 (B, N), scalar, (B, N)."""
    lanes, size = x.shape
    for b in range(lanes):
        x_b, out_b = x[b], out[b]
        for i in range(size):
            out_b[i] = _keep(out_b[i] + x_b[i] * factor)


@compiled(inline=True)
def _normalise(x: Any, out: Any) -> Any:
    """Layer norm of a row by integer sums: (x - mean) / sqrt(variance + 0.001); N <= 2^16.

    The row becomes 16-bit integers q by its largest magnitude; mean and variance are those of q. Returns what
    a unit of x is worth in `out`, for the gradient.
    """
    size, n = x.size, np.float32(x.size)
    inverse = _LEVELS / max(_absmax(x), _LEAST_TOP)
    total, squares = np.int64(0), np.int64(0)
    for i in range(size):
        q = np.int64(np.int32(_round(x[i] * inverse)))
        total += q
        squares += q * q
    spread = np.float32(np.int64(size) * squares - total * total)
    mean = np.float32(total) / n
    variance = spread / n / n + _EPSILON * inverse * inverse
    r = _ONE / np.float32(math.sqrt(variance))
    for i in range(size):
        out[i] = _keep((_round(x[i] * inverse) - mean) * r)
    return _keep(r * inverse)


@compiled(inline=True)
def _normalise_gradient(y: Any, gain: Any, g: Any, dx: Any) -> None:
    """With y = normalise(x), all (N,): dx += gain (g - mean(g) - y mean(g y)), the means by integer sums."""
    size, n = y.size, np.float32(y.size)
    top = _absmax(g)
    if top >= _TINY:
        inverse, unit = _LEVELS / top, top / _LEVELS
        total, along = np.int64(0), np.int64(0)
        for i in range(size):
            q = np.int64(np.int32(_round(g[i] * inverse)))
            total += q
            along += q * np.int64(np.int32(_round(y[i] * _FINE)))
        mean = _keep(np.float32(total) / n * unit)
        slope = _keep(np.float32(along) / n / _FINE * unit)
        for i in range(size):
            rest = _keep((g[i] - mean) - y[i] * slope)
            dx[i] = _keep(dx[i] + gain * rest)


@compiled()
def scaled_norm(x: Any, gain: Any, shift: Any, normed: Any, units: Any, out: Any) -> None:
    """Layer norm of each of P equal parts of a row, times gain, plus shift.

    Shapes: x, gain, shift, normed, out (B, N); units (B, P): what a unit of x is worth in `normed`. `normed`
    and `units` are kept for the gradient.
    """
    lanes, parts = units.shape
    size = x.shape[1] // parts
    for b in range(lanes):
        for p in range(parts):
            units[b, p] = _normalise(x[b, p * size : (p + 1) * size], normed[b, p * size : (p + 1) * size])
        gain_b, shift_b, normed_b, out_b = gain[b], shift[b], normed[b], out[b]
        for i in range(out_b.size):
            out_b[i] = _keep(_keep(normed_b[i] * gain_b[i]) + shift_b[i])


@compiled()
def scaled_norm_gradient(
    normed: Any, units: Any, gain: Any, g: Any, dx: Any, dgain: Any, dshift: Any
) -> None:
    """Add to the gradients of x, gain and shift; shapes as in `scaled_norm`."""
    lanes, parts = units.shape
    size = normed.shape[1] // parts
    inner = np.empty(normed.shape[1], np.float32)
    for b in range(lanes):
        normed_b, gain_b, g_b, dgain_b, dshift_b = normed[b], gain[b], g[b], dgain[b], dshift[b]
        for i in range(g_b.size):
            dshift_b[i] = _keep(dshift_b[i] + g_b[i])
            inner[i] = _keep(g_b[i] * gain_b[i])
            dgain_b[i] = _keep(dgain_b[i] + g_b[i] * normed_b[i])
        for p in range(parts):
            start, stop = p * size, (p + 1) * size
            _normalise_gradient(normed_b[start:stop], units[b, p], inner[start:stop], dx[b, start:stop])


@compiled(inline=True)
def _sigmoid_slope(g: Any, y: Any) -> Any:
    return _keep(_keep(_keep(g) * y) * (_ONE - y))


@compiled()
def lstm_cell(a: Any, c: Any, out: Any) -> None:
    """LSTM's new cell c sigmoid(f) + sigmoid(i) tanh(j): a (B, 4H), the parts i, j, f, o; c, out (B, H)."""
    lanes, units = c.shape
    for b in range(lanes):
        a_i, a_j, a_f = a[b, :units], a[b, units : 2 * units], a[b, 2 * units : 3 * units]
        c_b, out_b = c[b], out[b]
        for k in range(units):
            i, j, f = _keep(_sigmoid(a_i[k])), _keep(_tanh(a_j[k])), _keep(_sigmoid(a_f[k]))
            out_b[k] = _keep(_keep(c_b[k] * f) + _keep(i * j))


@compiled()
def lstm_cell_gradient(a: Any, c: Any, g: Any, da: Any, dc: Any) -> None:
    """Add to the gradients of a and c; the gates are computed anew."""
    lanes, units = c.shape
    for b in range(lanes):
        a_i, a_j, a_f = a[b, :units], a[b, units : 2 * units], a[b, 2 * units : 3 * units]
        d_i, d_j, d_f = da[b, :units], da[b, units : 2 * units], da[b, 2 * units : 3 * units]
        c_b, g_b, dc_b = c[b], g[b], dc[b]
        for k in range(units):
            i, j, f = _keep(_sigmoid(a_i[k])), _keep(_tanh(a_j[k])), _keep(_sigmoid(a_f[k]))
            d_j[k] = _keep(d_j[k] + _keep(_keep(g_b[k] * i) * (_ONE - j * j)))
            d_i[k] = _keep(d_i[k] + _sigmoid_slope(g_b[k] * j, i))
            dc_b[k] = _keep(dc_b[k] + g_b[k] * f)
            d_f[k] = _keep(d_f[k] + _sigmoid_slope(g_b[k] * c_b[k], f))


@compiled()
def lstm_output(x: Any, a: Any, out: Any) -> None:
    """LSTM's output tanh(x) sigmoid(o): x, out (B, H), a (B, 4H)."""
    lanes, units = x.shape
    for b in range(lanes):
        x_b, a_o, out_b = x[b], a[b, 3 * units :], out[b]
        for k in range(units):
            out_b[k] = _keep(_keep(_tanh(x_b[k])) * _keep(_sigmoid(a_o[k])))


@compiled()
def lstm_output_gradient(x: Any, a: Any, g: Any, dx: Any, da: Any) -> None:
    """Add to the gradients of x and a."""
    lanes, units = x.shape
    for b in range(lanes):
        x_b, a_o, g_b, dx_b, d_o = x[b], a[b, 3 * units :], g[b], dx[b], da[b, 3 * units :]
        for k in range(units):
            y, o = _keep(_tanh(x_b[k])), _keep(_sigmoid(a_o[k]))
            d_o[k] = _keep(d_o[k] + _sigmoid_slope(g_b[k] * y, o))
            dx_b[k] = _keep(dx_b[k] + _keep(g_b[k] * o) * (_ONE - y * y))
