"""All backends give the same bits, at the extremes of the arithmetic too."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhnzip.errors import BackendError
from rhnzip.exact import backend, constants, product
from rhnzip.exact.backend import get_backend, known_answer
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.random import uniform_int8
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.exact.weights import ExactWeights, Linear

ROOT = Path(__file__).parents[2]
F = np.float32


# A third implementation, straight from docs/exactness.md: NumPy rounds each float32 operation on its own.


@dataclass
class NumpyValue:
    floats: NDArray[np.float32]
    int8: NDArray[np.int8]


class NumpyOps:
    """The exact primitives, shape (B, width) throughout."""

    def __init__(self, weights: ExactWeights, lanes: int) -> None:
        self.lanes, self.weights = lanes, weights

    def begin_step(self) -> None:
        pass

    def symbols(self, symbols: Any) -> Any:
        return symbols

    def zeros(self, width: int) -> NumpyValue:
        return NumpyValue(np.zeros((self.lanes, width), F), np.zeros((self.lanes, width), np.int8))

    def rows(self, name: str, index: Any = None) -> Any:
        table = self.weights.tables[name]
        return table[0] if index is None else table[index]

    def dropout(self, _name: str, x: Any) -> Any:
        return x

    def linear(self, name: str, x: NumpyValue) -> Any:
        linear = self.weights.linears[name]
        sums = x.int8.astype(np.int64) @ linear.weight.astype(np.int64)
        return sums.astype(F) * linear.scale

    @staticmethod
    def tanh(x: Any) -> Any:
        p, q = [F(c) for c in constants.TANH_P], [F(c) for c in constants.TANH_Q]
        x = np.minimum(np.maximum(x, F(-constants.TANH_LIMIT)), F(constants.TANH_LIMIT))
        u = x * x
        return x * (p[0] + u * (p[1] + u * p[2])) / (F(1) + u * (q[0] + u * (q[1] + u * q[2])))

    def sigmoid(self, x: Any) -> Any:
        return F(0.5) + F(0.5) * self.tanh(F(0.5) * x)

    def keep(self, x: Any, scale: str) -> NumpyValue:
        x = np.clip(x, F(-constants.HUGE), F(constants.HUGE))
        x = np.where(np.abs(x) >= F(constants.TINY), x, F(0))
        q = np.rint(np.clip(x * F(self.weights.scales[scale]), F(-127), F(127))).astype(np.int8)
        return NumpyValue(x, q)

    def highway(self, affine: Any, rows: Any, s: NumpyValue, scale: str) -> NumpyValue:
        h, t = np.split(affine + rows, 2, axis=1)
        h, t = self.tanh(h), self.sigmoid(t)
        return self.keep((h - s.floats) * t + s.floats, scale)

    def highway_uncoupled(self, affine: Any, rows: Any, s: NumpyValue, scale: str) -> NumpyValue:
        h, t, c = np.split(affine + rows, 3, axis=1)
        h, t, c = self.tanh(h), self.sigmoid(t), self.sigmoid(c)
        return self.keep(h * t + s.floats * c, scale)

    def output(self, affine: Any, rows: Any) -> NDArray[np.float32]:
        x = (affine + rows) * (F(constants.LOG2_E) * F(1024))
        z = np.rint(np.clip(x, F(-65536), F(65536))).astype(np.int64)
        below = z.max(1, keepdims=True) - z
        table = np.array(constants.exp2_table(), np.int64)
        e = table[below % 1024] >> np.minimum(below // 1024, 31)
        counts = e * constants.COUNT_TOTAL // e.sum(1, keepdims=True)
        counts[np.arange(len(counts)), e.argmax(1)] += constants.COUNT_TOTAL - counts.sum(1)
        return counts.astype(F)

    def floats(self, x: NumpyValue) -> NDArray[np.float32]:
        return x.floats


class NumpyBackend:
    """Prepares and opens at once."""

    name, device, parallel = "numpy", "cpu", False

    def prepare(self, weights: ExactWeights) -> Any:
        self.weights = weights
        return self

    def open(self, lanes: int) -> NumpyOps:
        return NumpyOps(self.weights, lanes)


# Networks at the extremes.


@dataclass(frozen=True)
class Case:
    seed: int
    lanes: int
    units: int
    coupled: bool
    gain: float
    value_scale: float

    def weights(self) -> ExactWeights:
        rng = np.random.default_rng(self.seed)
        width = (2 if self.coupled else 3) * self.units

        def linear(columns: int) -> Linear:
            weight = rng.integers(-127, 128, (self.units, columns)).astype(np.int8)
            column = rng.integers(columns, size=2)
            weight[:, column[0]], weight[:, column[1]] = 127, -127
            scale = (rng.random(columns) * self.gain / (127 * 127)).astype(F)
            return Linear(weight, sprinkle(scale, [0.0, 2.0**-60, 2.0**-40, 1.0, 2.0**40]))

        def table(rows: int, columns: int) -> NDArray[np.float32]:
            values = (rng.standard_normal((rows, columns)) * self.gain).astype(F)
            return sprinkle(values, [0.0, 2.0**-60, -(2.0**-60), 6.0, -12.0, 2.0**40, -(2.0**40)])

        def sprinkle(values: NDArray[np.float32], extremes: list[float]) -> NDArray[np.float32]:
            chosen = rng.random(values.shape) < 0.2
            values[np.abs(values) < 2.0**-60] = 0
            return np.where(chosen, rng.choice(np.array(extremes, F), values.shape), values).astype(F)

        weights = ExactWeights(
            {"recurrent": linear(width), "output": linear(256)},
            {"input": table(256, width), "bias": table(1, width), "output_bias": table(1, 256)},
            {"state": self.value_scale},
        )
        weights.check()
        return weights


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    lanes=st.integers(1, 40),
    units=st.integers(1, 80),
    coupled=st.booleans(),
    gain=st.sampled_from([1e-6, 0.1, 3.0, 100.0]),
    value_scale=st.sampled_from([127.0, 2.0**-20, 2.0**20, 21.5]),
)


def run(
    case: Case, implementation: Any, lanes: slice | None = None, steps: int = 3
) -> list[NDArray[np.float32]]:
    """States and counts of some steps, in the lanes asked for alone."""
    part = slice(0, case.lanes) if lanes is None else lanes
    ops = implementation.prepare(case.weights()).open(part.stop - part.start)
    symbols = np.random.default_rng(case.seed).integers(0, 256, (steps, case.lanes))
    highway = ops.highway if case.coupled else ops.highway_uncoupled
    s, out = ops.zeros(case.units), []
    for step in range(steps):
        ops.begin_step()
        index = ops.symbols(np.ascontiguousarray(symbols[step, part]))
        s = highway(ops.linear("recurrent", s), ops.rows("input", index), s, "state")
        s = highway(ops.linear("recurrent", s), ops.rows("bias"), s, "state")
        out.append(ops.floats(s).copy())
        out.append(ops.output(ops.linear("output", s), ops.rows("output_bias")).copy())
    return out


def same(a: list[NDArray[np.float32]], b: list[NDArray[np.float32]]) -> bool:
    return [x.tobytes() for x in a] == [x.tobytes() for x in b]


@contextmanager
def flushed() -> Iterator[None]:
    """Subnormal numbers flushed to zero in this thread, where the processor can."""
    try:
        torch.set_flush_denormal(True)
        yield
    finally:
        torch.set_flush_denormal(False)


@given(case=CASES)
@settings(max_examples=60, deadline=None)
def test_backends_give_the_same_bits(case: Case) -> None:
    expected = run(case, NumpyBackend())
    for implementation in (CpuBackend(), ReferenceBackend()):
        assert same(run(case, implementation), expected)
        with flushed():
            result = run(case, implementation)
        assert same(result, expected)


@given(case=CASES)
@settings(max_examples=30, deadline=None)
def test_values_stay_in_range(case: Case) -> None:
    out = run(case, CpuBackend(), steps=5)
    for state in out[::2]:
        size = np.abs(state)
        assert np.isfinite(state).all() and size.max() <= constants.HUGE
        assert (size[size != 0] >= constants.TINY).all()
        assert not case.coupled or size.max() <= 1
    for counts in out[1::2]:
        assert counts.dtype == F and counts.flags.c_contiguous and counts.min() >= 0
        exact = counts.astype(np.int64)
        assert (exact == counts).all() and (exact.sum(1) == 2**24 - 256).all()


@given(case=CASES, data=st.data())
@settings(max_examples=20, deadline=None)
def test_lanes_do_not_depend_on_each_other(case: Case, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, case.lanes - 1))
    part = slice(start, data.draw(st.integers(start + 1, case.lanes)))
    for implementation in (CpuBackend(), ReferenceBackend()):
        together, apart = run(case, implementation), run(case, implementation, part)
        assert same([x[part] for x in together], apart)


@pytest.mark.parametrize("units", [1040, 1041, 2088])
def test_deep_products_give_the_same_bits(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(7, 3, units, True, 3.0, 127.0)
    expected = run(case, NumpyBackend(), steps=2)
    assert same(run(case, CpuBackend(), steps=2), expected)
    assert same(run(case, ReferenceBackend(), steps=2), expected)
    monkeypatch.setattr(product, "fast_product_is_right", lambda *_: False)
    assert same(run(case, CpuBackend(), steps=2), expected)
    assert same(run(case, ReferenceBackend(), steps=2), expected)


@given(case=CASES)
@settings(max_examples=15, deadline=None)
def test_portable_product_gives_the_same_bits(case: Case) -> None:
    expected = run(case, NumpyBackend())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "fast_product_is_right", lambda *_: False)
        assert same(run(case, CpuBackend()), expected)
        assert same(run(case, ReferenceBackend()), expected)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [(1, 1, 1), (17, 1040, 9), (17, 1041, 9), (3, 5000, 16), (1, 1 << 17, 2)],
)
@pytest.mark.parametrize("extreme", [True, False])
def test_portable_product_is_the_integer_product(rows: int, inner: int, columns: int, extreme: bool) -> None:
    x = uniform_int8("x", rows * inner).reshape(rows, inner)
    w = uniform_int8("w", inner * columns).reshape(inner, columns)
    if extreme:
        x[0], w[:, 0], w[:, -1] = 127, 127, -127
    expected = x.astype(np.int64) @ w.astype(np.int64)
    assert not extreme or abs(expected).max() == 127 * 127 * inner
    result = product.portable_product(torch.from_numpy(x), torch.from_numpy(w))
    assert result.dtype == torch.int32 and (result.numpy() == expected).all()


def test_wrong_fast_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(x: Any, w: Any, out: Any = None) -> Any:
        """As without VNNI: inputs shifted to be unsigned, pairs of products saturating at 16 bits."""
        terms = (x[:, :, None].int() + 128) * w[None].int()
        pairs = (terms[:, 0::2] + terms[:, 1::2]).clamp(-(1 << 15), (1 << 15) - 1)
        return (pairs.sum(1) - 128 * w.int().sum(0)).int()

    def refusing(*_: Any) -> Any:
        raise RuntimeError("not on this device")

    shape = (5, 64, 8, True, "cpu")
    check = product.fast_product_is_right.__wrapped__  # past the cache
    for wrong in (saturating, refusing):
        monkeypatch.setattr(product, "fast_product", wrong)
        assert not check(*shape)
    monkeypatch.setattr(product, "fast_product", lambda x, w, out=None: product.portable_product(x, w))
    assert check(*shape)


# The known answer.


@pytest.mark.parametrize("implementation", [CpuBackend, ReferenceBackend])
def test_known_answer(implementation: Any) -> None:
    assert known_answer(implementation()) == backend.KNOWN_ANSWER


SCRIPT = """
import sys, torch
from rhnzip.exact.backend import known_answer
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
flush = "flush" in sys.argv
if flush:
    flush = torch.set_flush_denormal(True)
    assert not flush or float(torch.tensor([1e-39]) * torch.tensor([1.0])) == 0
print(known_answer(CpuBackend()), known_answer(ReferenceBackend()))
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_NUM_THREADS": "2"},
        # As on an older processor: no VNNI, where torch's int8 product saturates, and no AVX for numba.
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default", "NUMBA_CPU_NAME": "generic"},
    ],
    ids=["this processor", "older processor"],
)
def test_known_answer_when_subnormals_are_flushed(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "flush"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [backend.KNOWN_ANSWER] * 2


def test_known_answer_sees_a_changed_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    p0, p1, p2 = constants.TANH_P
    monkeypatch.setattr(constants, "TANH_P", (p0, p1, float(np.nextafter(F(p2), F(1)))))
    assert known_answer(ReferenceBackend()) != backend.KNOWN_ANSWER


# Choosing a backend.


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No backend has passed its test yet, and the environment names none."""
    monkeypatch.delenv(backend.ENVIRONMENT, raising=False)
    monkeypatch.setattr(backend, "_passed", set())
    return monkeypatch


def test_default_backend(untested: pytest.MonkeyPatch) -> None:
    assert (get_backend().name, get_backend().device) == ("numba", "cpu")


def test_backend_by_name_and_by_environment(untested: pytest.MonkeyPatch) -> None:
    assert get_backend("reference").name == "reference"
    untested.setenv(backend.ENVIRONMENT, "reference")
    assert get_backend().name == "reference"
    assert get_backend("numba").name == "numba"  # what the caller says comes first
    untested.setenv(backend.ENVIRONMENT, "abacus")
    with pytest.raises(BackendError, match="'abacus'.*numba, reference"):
        get_backend()


def test_unknown_backend_or_device() -> None:
    with pytest.raises(BackendError, match="unknown backend"):
        get_backend("Numba")
    with pytest.raises(BackendError, match="not on 'cuda'"):
        get_backend("numba", "cuda")
    with pytest.raises(BackendError, match="no device 'abacus'"):
        get_backend("reference", "abacus")


@pytest.mark.parametrize("name", backend.BACKENDS)
def test_wrong_bits_are_refused(name: str, untested: pytest.MonkeyPatch) -> None:
    other = hashlib.sha256(backend.KNOWN_ANSWER.encode()).hexdigest()[: len(backend.KNOWN_ANSWER)]
    untested.setattr(backend, "KNOWN_ANSWER", other)
    with pytest.raises(BackendError, match="wrong bits"):
        get_backend(name)


def test_passed_backend_is_not_tested_again(untested: pytest.MonkeyPatch) -> None:
    get_backend("numba")
    untested.setattr(backend, "KNOWN_ANSWER", "00000000")
    assert get_backend("numba").name == "numba"
