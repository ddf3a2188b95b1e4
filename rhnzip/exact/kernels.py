"""The CPU kernels of the exact arithmetic (numba). One file, so that its hash keys the compiled cache.

Every float operation here is one binary32 operation rounded on its own: no fused multiply-add, no float64, no
library function. Literals are float32 constants; rounding to the nearest integer (ties to even) adds and
subtracts 1.5 * 2^23. A test reads the generated LLVM IR and fails on anything else.

Legend: B lanes, H units, V symbols, R rows of a table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rhnzip.exact import constants
from rhnzip.exact.compiled import compiled, float_of_bits

_P0, _P1, _P2 = (np.float32(v) for v in constants.TANH_P)
_Q0, _Q1, _Q2 = (np.float32(v) for v in constants.TANH_Q)
_TANH_LIMIT = np.float32(constants.TANH_LIMIT)
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_TINY = np.float32(constants.TINY)
_HUGE = np.float32(constants.HUGE)
_INT8_MAX = np.float32(constants.INT8_MAX)
_ROUNDER = np.float32(3 << 22)
_LOGIT_SCALE = np.float32(constants.LOG2_E) * np.float32(1 << constants.LOGIT_FRACTION)
_LOGIT_MAX = np.float32(constants.LOGIT_LIMIT << constants.LOGIT_FRACTION)
_FRACTION = np.int32(constants.LOGIT_FRACTION)
_FRACTION_MASK = np.int32((1 << constants.LOGIT_FRACTION) - 1)
_TOTAL = np.uint64(constants.COUNT_TOTAL)
_RECIPROCAL_BITS = np.uint64(36)
_UNIT = np.float32(2.0**-24)
_MAX_GRADIENT = np.float32(2.0**20)
_TILE = 128  # columns gathered at a time: they stay in the first-level cache
_LARGEST_EXP = np.int32(1 << constants.EXP_BITS)


@compiled(inline=True)
def _tanh(x: Any) -> Any:
    x = min(max(x, -_TANH_LIMIT), _TANH_LIMIT)
    u = x * x
    return x * (_P0 + u * (_P1 + u * _P2)) / (_ONE + u * (_Q0 + u * (_Q1 + u * _Q2)))


@compiled(inline=True)
def _sigmoid(x: Any) -> Any:
    return _HALF + _HALF * _tanh(_HALF * x)


@compiled(inline=True)
def _keep(x: Any) -> Any:
    """Zero below 2^-60, clamp to 2^40: what is kept is never subnormal or infinite."""
    x = min(max(x, -_HUGE), _HUGE)
    return x if abs(x) >= _TINY else _ZERO


@compiled(inline=True)
def _round(x: Any) -> Any:
    """Nearest integer, ties to even, for |x| < 2^22."""
    return (x + _ROUNDER) - _ROUNDER


@compiled(inline=True)
def _int8(x: Any, scale: Any) -> Any:
    return np.int8(np.int32(_round(min(max(x * scale, -_INT8_MAX), _INT8_MAX))))


@compiled(inline=True)
def _absmax(x: Any) -> Any:
    """Largest magnitude in a row. Floats >= 0 order as their bits do, and a loop over integers vectorises."""
    bits, top = x.view(np.int32), np.int32(0)
    for i in range(bits.size):
        top = max(top, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    return float_of_bits(top)


@compiled(inline=True)
def _quantise(x: Any, top: Any, q: Any) -> None:
    """Set q = round(127 x / top); zeros if the row's largest magnitude `top` is below 2^-60."""
    if top < _TINY:
        for i in range(x.size):
            q[i] = np.int8(0)
    else:
        inverse = _INT8_MAX / top
        for i in range(x.size):
            q[i] = _int8(x[i], inverse)


@compiled(inline=True)
def _step_of(top: Any) -> Any:
    """Scale of a row quantised by `_quantise`."""
    return top / _INT8_MAX if top >= _TINY else _ZERO


@compiled()
def highway(acc: Any, scale: Any, table: Any, index: Any, s: Any, quant: Any, out: Any, out_q: Any) -> None:
    """Coupled highway update s' = (h - s) t + s, and its int8 form.

    Shapes: acc int32 (B, 2H), scale float32 (2H,), table float32 (R, 2H), index int64 (B,), s float32 (B, H),
    quant float32 scalar, out float32 (B, H), out_q int8 (B, H). `out` may be `s`.
    """
    lanes, units = s.shape
    scale_h, scale_t = scale[:units], scale[units:]
    for b in range(lanes):
        acc_h, acc_t = acc[b, :units], acc[b, units:]
        row_h, row_t = table[index[b], :units], table[index[b], units:]
        s_b, out_b, q_b = s[b], out[b], out_q[b]
        for j in range(units):
            h = _tanh(np.float32(acc_h[j]) * scale_h[j] + row_h[j])
            t = _sigmoid(np.float32(acc_t[j]) * scale_t[j] + row_t[j])
            value = _keep((h - s_b[j]) * t + s_b[j])
            out_b[j] = value
            q_b[j] = _int8(value, quant)


@compiled()
def highway_uncoupled(
    acc: Any, scale: Any, table: Any, index: Any, s: Any, quant: Any, out: Any, out_q: Any
) -> None:
    """Highway update with its own carry gate, s' = h t + s c; shapes as in `highway` with 3H for 2H."""
    lanes, units = s.shape
    for b in range(lanes):
        r = index[b]
        for j in range(units):
            t_at, c_at = units + j, 2 * units + j
            h = _tanh(np.float32(acc[b, j]) * scale[j] + table[r, j])
            t = _sigmoid(np.float32(acc[b, t_at]) * scale[t_at] + table[r, t_at])
            c = _sigmoid(np.float32(acc[b, c_at]) * scale[c_at] + table[r, c_at])
            value = _keep(h * t + s[b, j] * c)
            out[b, j] = value
            out_q[b, j] = _int8(value, quant)


@compiled()
def counts(acc: Any, scale: Any, bias: Any, exp2: Any, work: Any, out: Any) -> None:
    """Logits to integer counts: c_i = floor(e_i S / sum e), the remainder to the first of the largest.

    Shapes: acc int32 (B, V), scale float32 (V,), bias float32 (1, V), exp2 int32 (1024,), work int32 (V,),
    out float32 (B, V). The counts sum to S = 2^24 - 256; as float32 they are exact.
    """
    lanes, symbols = acc.shape
    bias_0 = bias[0]
    for b in range(lanes):
        acc_b, out_b = acc[b], out[b]
        top = np.int32(-(1 << 30))
        for i in range(symbols):
            x = (np.float32(acc_b[i]) * scale[i] + bias_0[i]) * _LOGIT_SCALE
            z = np.int32(_round(min(max(x, -_LOGIT_MAX), _LOGIT_MAX)))
            work[i] = z
            top = max(top, z)
        total = np.int64(0)
        for i in range(symbols):
            below = np.int32(top - work[i])
            octaves = min(np.int32(below >> _FRACTION), np.int32(31))
            e = np.int32(exp2[below & _FRACTION_MASK] >> octaves)
            work[i] = e
            total += np.int64(e)
        # One division a row: with r = floor(S 2^36 / total), floor(e r / 2^36) is the quotient or one less,
        # since e / 2^36 <= 2^-8 < 1; the remainder tells which. total >= 2^28, so e r < 2^61.
        divisor = np.uint64(total)
        reciprocal = np.uint64((_TOTAL << _RECIPROCAL_BITS) // divisor)
        rest = np.uint64(0)
        for i in range(symbols):
            scaled = np.uint64(work[i])
            c = np.uint64((scaled * reciprocal) >> _RECIPROCAL_BITS)
            if np.uint64(scaled * _TOTAL - c * divisor) >= divisor:
                c += np.uint64(1)
            rest += c
            out_b[i] = np.float32(np.int32(c))
        largest = 0
        while work[largest] != _LARGEST_EXP:
            largest += 1
        out_b[largest] += np.float32(np.int32(_TOTAL - rest))


# Learning: vector-Jacobian products and the update. Gradients are sums over lanes and steps, never means.


@compiled()
def highway_gradient(
    acc: Any, scale: Any, table: Any, index: Any, s: Any, gradient: Any, da: Any, ds: Any
) -> None:
    """Vector-Jacobian product of `highway`; its gates are computed anew from the kept sums.

    Shapes as in `highway`; gradient of the output (B, H), da (B, 2H) is set, ds (B, H) is added to.
    """
    lanes, units = s.shape
    scale_h, scale_t = scale[:units], scale[units:]
    for b in range(lanes):
        acc_h, acc_t = acc[b, :units], acc[b, units:]
        row_h, row_t = table[index[b], :units], table[index[b], units:]
        s_b, g_b, ds_b = s[b], gradient[b], ds[b]
        da_h, da_t = da[b, :units], da[b, units:]
        for j in range(units):
            h = _tanh(np.float32(acc_h[j]) * scale_h[j] + row_h[j])
            t = _sigmoid(np.float32(acc_t[j]) * scale_t[j] + row_t[j])
            g = _keep(g_b[j])
            gt = _keep(g * t)
            da_h[j] = _keep(gt * (_ONE - h * h))
            da_t[j] = _keep(_keep(gt * (_ONE - t)) * (h - s_b[j]))
            ds_b[j] = _keep(ds_b[j] + (g - gt))


@compiled()
def highway_uncoupled_gradient(
    acc: Any, scale: Any, table: Any, index: Any, s: Any, gradient: Any, da: Any, ds: Any
) -> None:
    """Vector-Jacobian product of `highway_uncoupled`; shapes as in `highway_gradient` with 3H for 2H."""
    lanes, units = s.shape
    for b in range(lanes):
        r = index[b]
        for j in range(units):
            t_at, c_at = units + j, 2 * units + j
            h = _tanh(np.float32(acc[b, j]) * scale[j] + table[r, j])
            t = _sigmoid(np.float32(acc[b, t_at]) * scale[t_at] + table[r, t_at])
            c = _sigmoid(np.float32(acc[b, c_at]) * scale[c_at] + table[r, c_at])
            g = _keep(gradient[b, j])
            gt = _keep(g * t)
            gc = _keep(g * c)
            da[b, j] = _keep(gt * (_ONE - h * h))
            da[b, t_at] = _keep(_keep(gt * (_ONE - t)) * h)
            da[b, c_at] = _keep(_keep(gc * (_ONE - c)) * s[b, j])
            ds[b, j] = _keep(ds[b, j] + gc)


@compiled()
def counts_gradient(counts_: Any, symbols: Any, shares: Any, out: Any) -> None:
    """Gradient of -ln P(symbol) by the logits, times the lane's share: P - [i = symbol], P = (c + 1) / 2^24.

    Shapes: counts float32 (B, V), symbols int64 (B,), shares float32 (B,), 0 or 2^-20..1, out float32 (B, V).
    """
    lanes, size = counts_.shape
    for b in range(lanes):
        c_b, out_b, share = counts_[b], out[b], shares[b]
        if share == _ZERO:
            for i in range(size):
                out_b[i] = _ZERO
        else:
            chosen = (c_b[symbols[b]] + _ONE) * _UNIT - _ONE
            for i in range(size):
                out_b[i] = (c_b[i] + _ONE) * _UNIT * share
            out_b[symbols[b]] = chosen * share


@compiled()
def quantise_rows(da: Any, scale: Any, factor: Any, q: Any, row_scale: Any, work: Any) -> None:
    """Gradient times the weight's column scale, quantised per row: what the product for dX takes.

    Shapes: da (B, N), scale (N,), factor scalar, q int8 (B, N), row_scale (B,), work (N,). A row of the
    product with the int8 weight times its row_scale is that row of dX.
    """
    lanes, size = da.shape
    for b in range(lanes):
        da_b = da[b]
        for i in range(size):
            work[i] = da_b[i] * scale[i]
        top = _absmax(work)
        row_scale[b] = _step_of(top) * factor
        _quantise(work, top, q[b])


@compiled()
def add_scaled_rows(acc: Any, row_scale: Any, out: Any) -> None:
    """Add acc * row_scale to `out`: int32 (B, K), float32 (B,), float32 (B, K)."""
    lanes, size = acc.shape
    for b in range(lanes):
        acc_b, out_b, factor = acc[b], out[b], row_scale[b]
        for i in range(size):
            out_b[i] = _keep(out_b[i] + np.float32(acc_b[i]) * factor)


@compiled()
def quantise_columns(da: Any, start: Any, stop: Any, q: Any, column_scale: Any) -> None:
    """Quantise columns start..stop of a gradient: da (R, N) -> q int8 (N, R), column_scale (N,).

    Works through tiles of columns, row by row, as the gradient lies in memory; a tile is transposed as int8.
    """
    rows = da.shape[0]
    top, inverse = np.empty(_TILE, np.float32), np.empty(_TILE, np.float32)
    small = np.empty((rows, _TILE), np.int8)
    bits_of_top = top.view(np.int32)
    for first in range(start, stop, _TILE):
        width = min(_TILE, stop - first)
        for n in range(width):
            bits_of_top[n] = 0
        for r in range(rows):
            bits = da[r, first : first + width].view(np.int32)
            for n in range(width):
                bits_of_top[n] = max(bits_of_top[n], np.int32(bits[n] & np.int32(0x7FFFFFFF)))
        for n in range(width):
            column_scale[first + n] = _step_of(top[n])
            inverse[n] = _INT8_MAX / top[n] if top[n] >= _TINY else _ZERO
        for r in range(rows):
            da_r, small_r = da[r, first : first + width], small[r]
            for n in range(width):
                small_r[n] = _int8(da_r[n], inverse[n])
        for n in range(width):
            q_n = q[first + n]
            for r in range(rows):
                q_n[r] = small[r, n]


@compiled()
def weights(q: Any, unit: Any, theta: Any) -> None:
    """What int8 weights stand for: int8 (N, K), float32 (N,), float32 (N, K)."""
    for n in range(len(q)):
        q_n, theta_n, factor = q[n], theta[n], unit[n]
        for k in range(q_n.size):
            theta_n[k] = _keep(np.float32(q_n[k]) * factor)


@compiled(inline=True)
def _stepped(theta: Any, g: Any, v: Any, rate: Any, floor: Any) -> Any:
    """One weight's step: against the gradient over its running RMS."""
    return _keep(theta - rate * (g / (np.float32(math.sqrt(v)) + floor)))


@compiled(inline=True)
def _pull(theta: Any, anchor: Any, decay: Any, drift: Any) -> None:
    """Move weights towards their anchors, then anchors towards the weights: both (N,)."""
    if decay > _ZERO or drift > _ZERO:
        for n in range(theta.size):
            theta[n] = _keep(theta[n] + decay * (anchor[n] - theta[n]))
            anchor[n] = _keep(anchor[n] + drift * (theta[n] - anchor[n]))


@compiled(inline=True)
def _second_moment(v: Any, g: Any, beta: Any, rest: Any) -> Any:
    """Running mean of the squared gradient; the first one seen stands for itself."""
    g = min(max(g, -_MAX_GRADIENT), _MAX_GRADIENT)
    square = g * g
    return _keep(square if v == _ZERO else beta * v + rest * square)


@compiled()
def update_linear(
    dw: Any,
    column_scale: Any,
    inputs: Any,
    theta: Any,
    v: Any,
    anchor: Any,
    settings: Any,
    q: Any,
    scale: Any,
) -> None:
    """Take one step on N outputs of a linear map and quantise them anew.

    Shapes: dw int32 (N, K): the product of quantised gradient and input; column_scale (N,): its scale; inputs
    scalar: the input value's int8 scale; theta, v, anchor float32 (N, K); settings float32 (rate, beta,
    1 - beta, floor, decay, drift); q int8 (N, K) and scale (N,): as the products use them.
    """
    rate, beta, rest = settings[0], settings[1], settings[2]
    floor, decay, drift = settings[3], settings[4], settings[5]
    outputs, size = dw.shape
    for n in range(outputs):
        factor = column_scale[n] / inputs
        dw_n, theta_n, v_n, q_n = dw[n], theta[n], v[n], q[n]
        for k in range(size):
            g = _keep(np.float32(dw_n[k]) * factor)
            moment = _second_moment(v_n[k], g, beta, rest)
            v_n[k] = moment
            theta_n[k] = _stepped(theta_n[k], g, moment, rate, floor)
        _pull(theta_n, anchor[n], decay, drift)
        top = _absmax(theta_n)
        scale[n] = _step_of(top) / inputs
        _quantise(theta_n, top, q_n)


@compiled()
def update_table(
    q: Any,
    column_scale: Any,
    slots: Any,
    touched: Any,
    start: Any,
    stop: Any,
    table: Any,
    v: Any,
    anchor: Any,
    settings: Any,
) -> None:
    """Take one step on columns start..stop of the rows that a segment used; all others' moments fade.

    All rows are pulled to their anchors.

    Shapes: q int8 (N, R), column_scale (N,), slots int64 (R,): which touched row each gradient is of,
    touched int64 (U,): the rows in use, ascending, table, v, anchor float32 (rows, N).
    """
    rate, beta, rest = settings[0], settings[1], settings[2]
    floor, decay, drift = settings[3], settings[4], settings[5]
    used = 0
    for row in range(len(table)):
        if used < touched.size and touched[used] == row:
            used += 1
        else:
            v_row = v[row]
            for n in range(start, stop):  # 0 <= v <= 2^40: of `_keep`, only its lower end can act
                faded = beta * v_row[n]
                v_row[n] = faded if faded >= _TINY else _ZERO
    sums = np.empty((touched.size, _TILE), np.int32)
    for first in range(start, stop, _TILE):
        width = min(_TILE, stop - first)
        sums[:] = np.int32(0)
        for r in range(slots.size):
            sums_r = sums[slots[r]]
            for n in range(width):
                sums_r[n] += np.int32(q[first + n, r])
        factors = column_scale[first : first + width]
        for u in range(touched.size):
            row, sums_u = touched[u], sums[u]
            table_u, v_u = table[row, first : first + width], v[row, first : first + width]
            for n in range(width):
                g = _keep(np.float32(sums_u[n]) * factors[n])
                moment = _second_moment(v_u[n], g, beta, rest)
                v_u[n] = moment
                table_u[n] = _stepped(table_u[n], g, moment, rate, floor)
    for row in range(len(table)):
        _pull(table[row, start:stop], anchor[row, start:stop], decay, drift)
