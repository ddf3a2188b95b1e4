"""Fused CPU kernels for training. Float, contraction allowed: nothing here is on a coding path.

Legend: B lanes, H units. Matrix products arrive and leave as bfloat16 (seen as uint16) or float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from rhnzip.exact.constants import TANH_LIMIT, TANH_P, TANH_Q

_P0, _P1, _P2 = (np.float32(v) for v in TANH_P)
_Q0, _Q1, _Q2 = (np.float32(v) for v in TANH_Q)
_LIMIT = np.float32(TANH_LIMIT)
_ONE = np.float32(1.0)
_HALF = np.float32(0.5)


def _bits_to_float(_context: Any, bits: Any) -> Any:
    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        from llvmlite import ir

        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), code


def _float_to_bits(_context: Any, value: Any) -> Any:
    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        from llvmlite import ir

        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), code


_as_float: Any = intrinsic(_bits_to_float)
_as_bits: Any = intrinsic(_float_to_bits)


@njit(inline="always", fastmath=True)
def _load_bf16(v: Any) -> Any:
    return _as_float(np.uint32(np.uint32(v) << np.uint32(16)))


@njit(inline="always")
def _store_bf16(v: Any) -> Any:
    bits = _as_bits(np.float32(v))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(inline="always")
def _same(v: Any) -> Any:
    return v


@njit(inline="always", fastmath=True)
def _tanh(x: Any) -> Any:
    x = min(max(x, -_LIMIT), _LIMIT)
    u = x * x
    return x * (_P0 + u * (_P1 + u * _P2)) / (_ONE + u * (_Q0 + u * (_Q1 + u * _Q2)))


def _make(load: Any, store: Any) -> tuple[Any, Any, Any, Any]:
    @njit(fastmath=True, error_model="numpy", nogil=True)
    def forward(a: Any, table: Any, index: Any, s: Any, out: Any, h_out: Any, t_out: Any) -> None:
        lanes, units = s.shape
        for b in range(lanes):
            a_h, a_t = a[b, :units], a[b, units:]
            r_h, r_t = table[index[b], :units], table[index[b], units:]
            s_b, out_b, h_b, t_b = s[b], out[b], h_out[b], t_out[b]
            for j in range(units):
                h = _tanh(load(a_h[j]) + r_h[j])
                t = _HALF + _HALF * _tanh(_HALF * (load(a_t[j]) + r_t[j]))
                h_b[j] = h
                t_b[j] = t
                out_b[j] = (h - s_b[j]) * t + s_b[j]

    @njit(fastmath=True, error_model="numpy", nogil=True)
    def backward(g: Any, s: Any, h: Any, t: Any, da: Any, ds: Any) -> None:
        lanes, units = s.shape
        for b in range(lanes):
            g_b, s_b, h_b, t_b, ds_b = g[b], s[b], h[b], t[b], ds[b]
            da_h, da_t = da[b, :units], da[b, units:]
            for j in range(units):
                gt = g_b[j] * t_b[j]
                ds_b[j] = g_b[j] - gt
                da_h[j] = store(gt * (_ONE - h_b[j] * h_b[j]))
                da_t[j] = store(gt * (h_b[j] - s_b[j]) * (_ONE - t_b[j]))

    @njit(error_model="numpy", nogil=True)
    def narrow(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = store(x[i])

    @njit(error_model="numpy", nogil=True)
    def widen_add(x: Any, total: Any) -> None:
        for i in range(x.size):
            total[i] += load(x[i])

    return forward, backward, narrow, widen_add


_KERNELS = {torch.bfloat16: _make(_load_bf16, _store_bf16), torch.float32: _make(_same, _same)}
_ZEROS = np.zeros(1 << 17, np.int64)


def _numpy(x: Tensor) -> Any:
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def highway_forward(
    a: Tensor, table: Tensor, index: Tensor | None, s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new state and the two gates h, t, each float32 of shape (B, H)."""
    out, h, t = torch.empty_like(s), torch.empty_like(s), torch.empty_like(s)
    rows = _ZEROS if index is None else index.numpy()
    forward = _KERNELS[a.dtype][0]
    forward(_numpy(a), table.numpy(), rows, s.numpy(), out.numpy(), h.numpy(), t.numpy())
    return out, h, t


def highway_backward(g: Tensor, s: Tensor, h: Tensor, t: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the gradients of the pre-activations, (B, 2H) of `dtype`, and of the carried state, float32."""
    lanes, units = s.shape
    da, ds = torch.empty(lanes, 2 * units, dtype=dtype), torch.empty_like(s)
    backward = _KERNELS[dtype][1]
    backward(g.numpy(), s.numpy(), h.numpy(), t.numpy(), _numpy(da), ds.numpy())
    return da, ds


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the product type; one thread, since waking another takes longer than the work."""
    out = torch.empty(x.shape, dtype=dtype)
    _KERNELS[dtype][2](x.contiguous().view(-1).numpy(), _numpy(out).reshape(-1))
    return out


def widen_add(x: Tensor, total: Tensor) -> Tensor:
    """Add `x`, of the product type, to float32 `total` in place."""
    _KERNELS[x.dtype][3](_numpy(x).reshape(-1), total.view(-1).numpy())
    return total
