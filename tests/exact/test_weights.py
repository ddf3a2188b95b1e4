"""What weights are refused, and how floats become int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rhnzip.errors import ModelError
from rhnzip.exact.weights import ExactWeights, Linear, quantise

Float = NDArray[np.float32]


def valid() -> ExactWeights:
    linear = Linear(np.full((3, 2), 127, np.int8), np.array([0.0, 2.0**-60], np.float32))
    return ExactWeights({"a": linear}, {"t": np.array([[-(2.0**40), 0.0]], np.float32)}, {"state": 127.0})


def test_limits_themselves_are_accepted() -> None:
    valid().check()


def weight(value: NDArray[np.generic]) -> Callable[[ExactWeights], ExactWeights]:
    return lambda w: replace(w, linears={"a": replace(w.linears["a"], weight=value)})


def scale(*values: float, dtype: type = np.float32) -> Callable[[ExactWeights], ExactWeights]:
    return lambda w: replace(w, linears={"a": replace(w.linears["a"], scale=np.array(values, dtype))})


def table(value: NDArray[np.generic]) -> Callable[[ExactWeights], ExactWeights]:
    return lambda w: replace(w, tables={"t": value})


def value_scale(value: float) -> Callable[[ExactWeights], ExactWeights]:
    return lambda w: replace(w, scales={"state": value})


ONE_ROW = np.ones((1, 2), np.float32)
NAN, INFINITY = float("nan"), float("inf")

REFUSED: dict[str, tuple[Callable[[ExactWeights], ExactWeights], str]] = {
    "weight -128": (weight(np.array([[1, -128]], np.int8)), "a: weight -128"),
    "weight of uint8": (weight(np.ones((3, 2), np.uint8)), "a: a weight must be a matrix of int8"),
    "weight vector": (weight(np.ones(2, np.int8)), "a: a weight must be a matrix"),
    "empty weight": (weight(np.ones((0, 2), np.int8)), "a: a weight must be a matrix"),
    "deep weight": (weight(np.ones(((1 << 17) + 1, 2), np.int8)), "a: inner dimension 131073 overflows"),
    "too few scales": (scale(1.0), r"a: \(1,\) scales for a \(3, 2\) weight"),
    "negative scale": (scale(1.0, -1.0), "a: negative scale"),
    "NaN scale": (scale(1.0, NAN), "a.scale: holds NaN"),
    "infinite scale": (scale(1.0, INFINITY), "a.scale: holds NaN or infinity"),
    "subnormal scale": (scale(1.0, 1e-40), "a.scale: values must be zero or of magnitude"),
    "tiny scale": (scale(1.0, 2.0**-61), "a.scale: values must be zero or of magnitude"),
    "large scale": (scale(1.0, 2.0**41), "a.scale: values must be zero or of magnitude"),
    "float64 scale": (scale(1.0, 1.0, dtype=np.float64), "a.scale: type float64"),
    "float64 table": (table(ONE_ROW.astype(np.float64)), "t: type float64"),
    "table vector": (table(ONE_ROW[0]), "t: a table must be a matrix"),
    "empty table": (table(ONE_ROW[:0]), "t: a table must be a matrix"),
    "NaN table": (table(ONE_ROW * np.float32(NAN)), "t: holds NaN"),
    "infinite table": (table(-ONE_ROW * np.float32(INFINITY)), "t: holds NaN or infinity"),
    "tiny table": (table(ONE_ROW * np.float32(-(2.0**-61))), "t: values must be zero or"),
    "large table": (table(ONE_ROW * np.float32(-(2.0**41))), "t: values must be zero or"),
    "value scale zero": (value_scale(0.0), "state: value scale 0.0"),
    "value scale NaN": (value_scale(NAN), "state: value scale nan"),
    "value scale negative": (value_scale(-127.0), "state: value scale -127.0"),
    "value scale large": (value_scale(2.0**21), "state: value scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        change(valid()).check()


MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False),
)


@given(matrix=MATRICES, value=st.sampled_from([127.0, 1.0, 2.0**20, 2.0**-20]))
@settings(max_examples=200, deadline=None)
def test_quantised_weight_is_near(matrix: Float, value: float) -> None:
    linear = quantise(matrix, value)
    ExactWeights({"a": linear}, {}, {}).check()
    column = np.abs(matrix.astype(np.float64)).max(0) / 127
    restored = linear.weight * (linear.scale.astype(np.float64) * value)
    # Half a step, and what float32 rounds; columns whose scale would fall below 2^-60 become zero.
    limit = np.where(linear.scale > 0, 0.5 * column * (1 + 1e-4), 127 * 2.0**-60 * max(value, 1.0))
    assert (np.abs(restored - matrix) <= limit).all()
    largest = np.abs(linear.weight).max(0)
    assert ((largest == 127) | (linear.scale == 0)).all()


def test_zero_and_tiny_columns() -> None:
    matrix = np.array([[0.0, 2.0**-61, 2.0**-50, 1.0], [0.0, -(2.0**-61), 0.0, 0.0]], np.float32)
    linear = quantise(matrix, 127.0)
    assert linear.weight.tolist() == [[0, 0, 0, 127], [0, 0, 0, 0]]
    assert linear.scale[:3].tolist() == [0.0, 0.0, 0.0] and linear.scale[3] > 0
    ExactWeights({"a": linear}, {}, {}).check()


def test_ties_go_to_even() -> None:
    matrix = np.array([[127.0], [0.5], [1.5], [2.5], [-0.5], [-1.5], [-2.5]], np.float32)
    assert quantise(matrix, 1.0).weight[:, 0].tolist() == [127, 0, 2, 2, 0, -2, -2]


def test_columns_have_scales_of_their_own() -> None:
    linear = quantise(np.array([[1.0, 1000.0], [0.5, 250.0]], np.float32), 2.0)
    assert linear.weight.tolist() == [[127, 127], [64, 32]]
    assert linear.scale == pytest.approx([1 / 254, 1000 / 254])


@pytest.mark.parametrize("value", [NAN, INFINITY])
def test_what_is_not_finite_is_left_for_the_check(value: float) -> None:
    linear = quantise(np.array([[value], [1.0]], np.float32), 127.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        ExactWeights({"a": linear}, {}, {}).check()
