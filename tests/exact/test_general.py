"""The general primitives against float64, values and gradients, and the backends against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhnzip.exact import backend
from rhnzip.exact.backend import Settings, general_answer, get_backend
from rhnzip.exact.constants import NORM_EPSILON
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.exact.weights import ExactWeights, Linear

F = np.float32
WIDTH = 10
BACKENDS: list[Any] = [CpuBackend(), ReferenceBackend()]
Floats = NDArray[np.float32]

# What each primitive does with the exact ops, and what it should do in float64.
PRIMITIVES: dict[str, tuple[int, Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "part": (1, lambda ops, x: ops.part(x, 2, 7), lambda x: x[:, 2:7]),
    "join": (2, lambda ops, x, y: ops.join([x, y, x]), lambda x, y: torch.cat([x, y, x], dim=1)),
    "tanh": (1, lambda ops, x: ops.tanh(x), torch.tanh),
    "sigmoid": (1, lambda ops, x: ops.sigmoid(x), torch.sigmoid),
    "add": (2, lambda ops, x, y: ops.add(x, y), lambda x, y: x + y),
    "multiply": (2, lambda ops, x, y: ops.multiply(x, y), lambda x, y: x * y),
    "square": (1, lambda ops, x: ops.multiply(x, x), lambda x: x * x),
    "mix": (3, lambda ops, g, x, y: ops.mix(g, x, y), lambda g, x, y: (x - y) * g + y),
    "zoneout": (2, lambda ops, x, y: ops.zoneout(x, y, 0.7), lambda x, y: 0.7 * x + 0.3 * y),
    "scaled_norm of all": (
        3,
        lambda ops, x, g, s: ops.scaled_norm(x, g, s, 1),
        lambda x, g, s: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON) * g + s,
    ),
    "scaled_norm": (
        3,
        lambda ops, x, g, s: ops.scaled_norm(x, g, s, 2),
        lambda x, g, s: (
            torch.nn.functional.layer_norm(x.unflatten(1, (2, -1)), (WIDTH // 2,), eps=NORM_EPSILON).flatten(
                1
            )
            * g
            + s
        ),
    ),
    "lstm_cell": (
        5,
        lambda ops, i, j, f, o, c: ops.lstm_cell(ops.join([i, j, f, o]), c),
        lambda i, j, f, o, c: c * torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(j) + 0 * o,
    ),
    "lstm_output": (
        3,
        lambda ops, x, y, o: ops.lstm_output(x, ops.join([y, y, y, o])),
        lambda x, y, o: torch.tanh(x) * torch.sigmoid(o) + 0 * y,
    ),
    "quantise": (1, lambda ops, x: ops.quantise(x, "state"), lambda x: x.clone()),
    "fresh_dropout": (1, lambda ops, x: ops.fresh_dropout("gate", x), lambda x: x.clone()),
}
ALL = pytest.mark.parametrize("name", PRIMITIVES)


def learning_ops(chosen: Any, lanes: int) -> Any:
    """Primitives with a tape, over a network of no importance."""
    weights = ExactWeights(
        {"output": Linear(np.ones((WIDTH, 256), np.int8), np.full(256, 0.01, F))},
        {"output_bias": np.zeros((1, 256), F)},
        {"state": 127.0},
    )
    learner = chosen.learner(weights, {"output": "state"}, Settings())
    (ops,) = learner.open_segment(lanes, 1, [slice(0, lanes)]).groups
    ops.begin_segment(())
    ops.begin_step()
    return ops


def filled(ops: Any, values: Floats) -> Any:
    value = ops.zeros(values.shape[1])
    value.floats[:] = values if isinstance(value.floats, np.ndarray) else torch.from_numpy(values)
    return value


def run(chosen: Any, name: str, inputs: list[Floats], gradient: Floats) -> tuple[Floats, list[Floats]]:
    """The primitive's value, and the gradients of its inputs when its own is `gradient`."""
    ops = learning_ops(chosen, len(gradient))
    values = [filled(ops, x) for x in inputs]
    out = PRIMITIVES[name][1](ops, *values)
    if chosen.name == "numba":
        ops._gradient(out)[:] = gradient
    else:
        out.gradient = torch.from_numpy(gradient)
    ops.backward()
    zeros = np.zeros_like(inputs[0])
    gradients = [zeros if v.gradient is None else np.asarray(v.gradient) for v in values]
    return ops.floats(out).copy(), gradients


def drawn(name: str, seed: int, lanes: int, size: float) -> tuple[list[Floats], Floats]:
    rng = np.random.default_rng(seed)
    inputs = [(rng.standard_normal((lanes, WIDTH)) * size).astype(F) for _ in range(PRIMITIVES[name][0])]
    width = {"part": 5, "join": 3 * WIDTH}.get(name, WIDTH)
    return inputs, rng.standard_normal((lanes, width)).astype(F)


@ALL
@pytest.mark.parametrize("chosen", BACKENDS, ids=lambda chosen: chosen.name)
def test_agrees_with_float64(name: str, chosen: Any) -> None:
    for size in (0.05, 1.0, 4.0):
        inputs, gradient = drawn(name, 1, 3, size)
        value, gradients = run(chosen, name, inputs, gradient)
        wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
        expected = PRIMITIVES[name][2](*wide)
        expected.backward(torch.tensor(gradient, dtype=torch.float64))
        np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-3, atol=3e-4)
        for got, x in zip(gradients, wide, strict=True):
            assert x.grad is not None
            largest = float(x.grad.abs().max())
            np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-3, atol=2e-3 * largest)


@given(
    name=st.sampled_from(sorted(PRIMITIVES)),
    seed=st.integers(0, 2**32 - 1),
    lanes=st.integers(1, 5),
    size=st.sampled_from([0.0, 2.0**-60, 2.0**-30, 1e-3, 1.0, 50.0, 2.0**20, 2.0**40]),
    slope=st.sampled_from([0.0, 2.0**-60, 2.0**-40, 1.0, 2.0**30]),
)
@settings(deadline=None)
def test_backends_agree_bit_for_bit(name: str, seed: int, lanes: int, size: float, slope: float) -> None:
    inputs, gradient = drawn(name, seed, lanes, size)

    def kept(x: Floats) -> Floats:
        return np.where(np.abs(x) < 2.0**-60, F(0), np.clip(x, F(-(2.0**40)), F(2.0**40)))

    inputs, gradient = [kept(x) for x in inputs], kept(gradient * F(slope))
    one, other = (run(chosen, name, inputs, gradient) for chosen in BACKENDS)
    assert one[0].tobytes() == other[0].tobytes()
    assert np.isfinite(one[0]).all()
    for first, second in zip(one[1], other[1], strict=True):
        # 0 and -0 are one gradient: neither survives a sum with anything else
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()
        assert ((np.abs(first) >= 2.0**-60) | (first == 0)).all()


def test_layer_norm_ignores_scale_and_offset() -> None:
    row = np.linspace(-1, 1, WIDTH, dtype=F)[None]
    ops = CpuBackend().prepare(learning_ops(BACKENDS[0], 1)._learner._initial).open(1)
    ops.begin_step()

    def normed(x: Floats) -> Floats:
        gain, shift = filled(ops, np.ones_like(x)), filled(ops, np.zeros_like(x))
        return np.array(ops.floats(ops.scaled_norm(filled(ops, x), gain, shift, 1)))

    plain, moved = normed(row * 100), normed(row * 5000 + 70000)
    np.testing.assert_allclose(plain, moved, atol=2e-3)
    np.testing.assert_allclose(plain.std(), 1, atol=1e-3)


@pytest.mark.parametrize("chosen", BACKENDS, ids=lambda chosen: chosen.name)
def test_general_answer(chosen: Any) -> None:
    assert general_answer(chosen) == backend.GENERAL_ANSWER


def test_general_answer_is_asked_for_only_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_passed", set())
    monkeypatch.setattr(backend, "GENERAL_ANSWER", "0" * 16)
    get_backend("numba")
    with pytest.raises(backend.BackendError, match="wrong bits"):
        get_backend("numba", general=True)
