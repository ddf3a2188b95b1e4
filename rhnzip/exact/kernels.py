"""The CPU kernels of the exact arithmetic (numba). One file, so that its hash keys the compiled cache.

Every float operation here is one binary32 operation rounded on its own: no fused multiply-add, no float64, no
library function. Literals are float32 constants; rounding to the nearest integer (ties to even) adds and
subtracts 1.5 * 2^23. A test reads the generated LLVM IR and fails on anything else.

Legend: B lanes, H units, V symbols, R rows of a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rhnzip.exact import constants
from rhnzip.exact.compiled import compiled

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


@compiled()
def highway(
    acc: Any, scale: Any, table: Any, index: Any, s: Any, quant: Any, out: Any, out_q: Any
) -> None:
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
    """Logits to integer counts: c_i = floor(e_i S / sum e), the remainder to the largest, lowest index on ties.

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
        # One division a row: with r = floor(S 2^36 / total), floor(e r / 2^36) is the quotient or one less, since
        # e / 2^36 <= 2^-8 < 1; the remainder tells which. total >= 2^28, so e r < 2^61.
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
