"""The int8 matrix product, int8 x int8 -> int32, and the test that decides how it is computed.

Integer sums are the same in any order, so any correct implementation gives the same bits. Not all are
correct: `torch._int_mm` saturates on CPUs without VNNI under some oneDNN settings, and small weights hide it.
So each shape is tried once per process at the extremes; where the fast product is wrong or refuses, the
portable one is used.

Legend: M rows, K inner size, N columns.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

PORTABLE_INNER = 1040
"""127 * 127 * 1040 < 2^24: float32 sums of this many int8 products are exact in any order."""


def portable_product(x: Tensor, w: Tensor) -> Tensor:
    """int8 (M, K) times int8 (K, N) -> int32 (M, N) by float32 products whose every partial sum is exact."""
    total = torch.zeros(x.shape[0], w.shape[1], dtype=torch.int32, device=x.device)
    for start in range(0, x.shape[1], PORTABLE_INNER):
        part = slice(start, start + PORTABLE_INNER)
        total += (x[:, part].to(torch.float32) @ w[part].to(torch.float32)).to(torch.int32)
    return total


def fast_product(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """The same by `torch._int_mm`, padded as CUDA asks (M > 16, K and N multiples of 8)."""
    if x.device.type == "cuda":
        rows, inner, columns = x.shape[0], x.shape[1], w.shape[1]
        x = torch.nn.functional.pad(x, (0, -inner % 8, 0, max(0, 32 - rows)))
        w = torch.nn.functional.pad(w, (0, -columns % 8, 0, -inner % 8))
        return torch._int_mm(x, w)[:rows, :columns]
    if out is not None:
        return torch._int_mm(x, w, out=out)
    return torch._int_mm(x, w)


@functools.cache
def fast_product_is_right(rows: int, inner: int, columns: int, transposed: bool, device: str) -> bool:
    """Whether `fast_product` agrees with `portable_product` at this shape and layout, extremes included."""
    if inner == 1 or columns == 1:
        # A stride along a size of 1 means nothing and may be anything, but torch's product reads it: with an
        # inner size of 1 some layouts give wrong sums, and which one a caller has the shape does not tell.
        return False
    generator = torch.Generator().manual_seed(rows * 1_000_003 + inner * 1009 + columns)

    def extreme(*shape: int) -> Tensor:
        return (torch.randint(0, 2, shape, generator=generator) * 254 - 127).to(torch.int8)

    x, w = extreme(rows, inner), extreme(inner, columns)
    x[0] = 127  # one row and one column reach the largest sums of either sign
    w[:, 0] = 127
    w[:, -1] = -127
    x, w = x.to(device), w.to(device)
    if transposed:
        w = w.t().contiguous().t()
    try:
        return torch.equal(fast_product(x, w), portable_product(x, w))
    except RuntimeError:
        return False


def multiply(x: Tensor, w: Tensor) -> Tensor:
    """int8 (M, K) times int8 (K, N) -> int32 (M, N), fast where that is right at this shape."""
    if fast_product_is_right(x.shape[0], x.shape[1], w.shape[1], False, str(x.device)):
        return fast_product(x, w)
    return portable_product(x, w)


class ProductMap:
    """One weight, laid out once, times many inputs."""

    def __init__(self, weight: Any, device: torch.device) -> None:
        """Lay out an int8 weight (numpy, shape (K, N)) with contiguous columns, which suits few rows."""
        self.inner, self.columns = weight.shape
        self.weight = torch.from_numpy(np.array(weight.T, order="C")).to(device).t()  # a copy at any shape
        self.device = device

    def check(self, rows: int) -> bool:
        """Whether the fast product may be used for this many rows."""
        return fast_product_is_right(rows, self.inner, self.columns, True, str(self.device))

    def __call__(self, x: Tensor, out: Tensor | None = None, *, fast: bool) -> Tensor:
        """int8 (M, K) -> int32 (M, N)."""
        if fast:
            return fast_product(x, self.weight, out)
        result = portable_product(x, self.weight)
        return result if out is None else out.copy_(result)

    def replace(self, weight: Tensor) -> None:
        """Take a new weight of the same shape, int8 (N, K): transposed, as it is laid out."""
        self.weight = weight.t()
