"""The rational tanh and sigmoid: close to the true functions, and alike on the float and the exact side."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rhnzip.exact import floating, kernels

Float = NDArray[np.float32]


@numba.njit(error_model="numpy")
def exact_tanh(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = kernels._tanh(x[i])


@numba.njit(error_model="numpy")
def exact_sigmoid(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = kernels._sigmoid(x[i])


def on_exact_side(kernel: Any, x: Float) -> Float:
    out = np.empty_like(x)
    kernel(x, out)
    return out


def on_float_side(function: Any, x: Float) -> Float:
    result: Float = function(torch.from_numpy(x)).numpy()
    return result


SIDES = {
    "exact tanh": lambda x: on_exact_side(exact_tanh, x),
    "exact sigmoid": lambda x: on_exact_side(exact_sigmoid, x),
    "float tanh": lambda x: on_float_side(floating.tanh, x),
    "float sigmoid": lambda x: on_float_side(floating.sigmoid, x),
}


@pytest.fixture(scope="module")
def grid() -> Float:
    """Ascending arguments, dense where the functions bend."""
    small = np.geomspace(2.0**-60, 1e-2, 2000)
    positive = np.concatenate([small, np.linspace(0.01, 14, 100_000), [100.0, 2.0**40]])
    return np.unique(np.concatenate([-positive, [0.0], positive]).astype(np.float32))


@pytest.mark.parametrize("name", SIDES)
def test_close_to_the_true_function(name: str, grid: Float) -> None:
    x = np.clip(grid.astype(np.float64), -700, 700)
    true = np.tanh(x) if "tanh" in name else 1 / (1 + np.exp(-x))
    assert np.abs(SIDES[name](grid) - true).max() < 2e-5


@pytest.mark.parametrize("name", SIDES)
def test_monotone_to_within_the_error_of_the_fit(name: str, grid: Float) -> None:
    result = SIDES[name](grid).astype(np.float64)
    fall = np.maximum.accumulate(result) - result
    assert fall.max() < 5e-6  # the fit bends down just before its argument is clamped
    assert fall[np.abs(grid) < 5].max() < 1e-6


@pytest.mark.parametrize("name", SIDES)
def test_bounded(name: str, grid: Float) -> None:
    result = SIDES[name](grid)
    assert np.abs(result).max() <= 1
    if "sigmoid" in name:
        assert result.min() > 0
    else:
        assert (result == -SIDES[name](-grid)).all() and result[grid == 0] == 0


@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_both_sides_agree(function: str, grid: Float) -> None:
    difference = SIDES[f"exact {function}"](grid) - SIDES[f"float {function}"](grid)
    assert np.abs(difference).max() <= 2.0**-22
