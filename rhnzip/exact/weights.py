"""Weights in the form the exact primitives use, and how float weights become int8.

Legend: K inner size, N outputs of a linear map, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhnzip.errors import ModelError
from rhnzip.exact.constants import HUGE, INT8_MAX, MAX_INNER, TINY

Float = NDArray[np.float32]
Int8 = NDArray[np.int8]


@dataclass(frozen=True)
class Linear:
    """An int8 linear map: x W ~ (q_x W_q) * scale, columns scaled one by one.

    Attributes:
        weight: int8, shape (K, N), values in -127..127.
        scale: float32, shape (N,): scale of the weight column divided by that of the input value.
    """

    weight: Int8
    scale: Float


@dataclass(frozen=True)
class ExactWeights:
    """All an exact network consists of.

    Attributes:
        linears: int8 linear maps by name.
        tables: float32 row tables by name, shape (R, N).
        scales: int8 scale of each named value: q = round(clamp(scale * x)).
    """

    linears: Mapping[str, Linear]
    tables: Mapping[str, Float]
    scales: Mapping[str, float]

    def check(self) -> None:
        """Refuse what the arithmetic does not cover.

        Raises:
            ModelError: not finite, subnormal or too large; -128; an inner dimension beyond 2^17; shapes that
                differ.
        """
        for name, linear in self.linears.items():
            if linear.weight.dtype != np.int8 or linear.weight.ndim != 2 or linear.weight.size == 0:
                raise ModelError(f"{name}: a weight must be a matrix of int8")
            if linear.weight.shape[0] > MAX_INNER:
                raise ModelError(f"{name}: inner dimension {linear.weight.shape[0]} overflows int32 sums")
            if linear.weight.min() < -INT8_MAX:
                raise ModelError(f"{name}: weight -128 is outside -127..127")
            if linear.scale.shape != linear.weight.shape[1:]:
                raise ModelError(f"{name}: {linear.scale.shape} scales for a {linear.weight.shape} weight")
            _check_floats(f"{name}.scale", linear.scale)
            if (linear.scale < 0).any():
                raise ModelError(f"{name}: negative scale")
        for name, table in self.tables.items():
            if table.ndim != 2 or table.size == 0:
                raise ModelError(f"{name}: a table must be a matrix")
            _check_floats(name, table)
        for name, scale in self.scales.items():
            if not 2.0**-20 <= scale <= 2.0**20:
                raise ModelError(f"{name}: value scale {scale} is outside 2^-20..2^20")


def _check_floats(name: str, values: Float) -> None:
    if values.dtype != np.float32:
        raise ModelError(f"{name}: type {values.dtype}, not float32")
    if not np.isfinite(values).all():
        raise ModelError(f"{name}: holds NaN or infinity")
    size = np.abs(values)
    if (size > HUGE).any() or ((size < TINY) & (size != 0)).any():
        raise ModelError(f"{name}: values must be zero or of magnitude 2^-60..2^40")


def quantise(weight: Float, value_scale: float) -> Linear:
    """Quantise a float weight (K, N) per output column: scale = absmax / 127, q = round(w / scale).

    Ties go to even. Columns whose scales would fall below 2^-60 become zero. What is not finite is left for
    `check` to refuse.

    >>> linear = quantise(np.array([[1.0, 0.0], [-0.5, 0.0]], np.float32), 127.0)
    >>> linear.weight.tolist(), float(linear.scale[1])
    ([[127, 0], [-64, 0]], 0.0)
    """
    limit = np.float32(INT8_MAX)
    tiny, value = np.float32(TINY), np.float32(value_scale)
    absmax = np.abs(weight).max(axis=0)
    column = absmax / limit
    column = np.where((absmax < tiny) | (column / value < tiny), np.float32(0), column)
    divisor = np.where(column > 0, column, np.float32(1))
    with np.errstate(invalid="ignore"):
        q = np.where(column > 0, np.rint(weight / divisor), np.float32(0))
        q = np.clip(q, -limit, limit).astype(np.int8)
    return Linear(q, (column / value).astype(np.float32))
