"""The float side: fused CPU kernels against plain autograd, and both against float64."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rhnzip.exact.floating import FloatOps

LANES, UNITS, STEPS, SYMBOLS, EMBEDDING = 5, 24, 7, 11, 6


def draw(*shape: int, seed: int, spread: float = 0.5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def leaves() -> dict[str, Tensor]:
    """Leaves of a two-layer network, some of which reach the primitives folded."""
    parameters = {
        "embedding": draw(SYMBOLS, EMBEDDING, seed=1, spread=1.0),
        "input": draw(EMBEDDING, 2 * UNITS, seed=2),
        "first": draw(UNITS, 2 * UNITS, seed=3),
        "second": draw(UNITS, 2 * UNITS, seed=4),
        "bias": draw(2 * UNITS, seed=5),
        "output": draw(UNITS, SYMBOLS, seed=6),
        "output_bias": draw(1, SYMBOLS, seed=7),
    }
    return {name: value.requires_grad_() for name, value in parameters.items()}


def masks() -> dict[str, Tensor]:
    kept = (torch.rand(LANES, UNITS, generator=torch.Generator().manual_seed(8)) < 0.7).float() / 0.7
    return {"hidden": kept, "output": kept.flip(0)}


def losses(
    p: Mapping[str, Tensor],
    *,
    fused: bool,
    dropout: bool = False,
    dtype: torch.dtype = torch.float32,
    ranges: dict[str, float] | None = None,
    state_gradient: bool = True,
) -> tuple[Tensor, FloatOps, Tensor]:
    """Loss of a segment, the primitives that computed it, and its initial state."""
    linears = {"first": p["first"], "second": p["second"], "output": p["output"]}
    tables = {
        "input": p["embedding"] @ p["input"],
        "bias": p["bias"].unsqueeze(0),
        "output_bias": p["output_bias"],
    }
    ops = FloatOps(
        linears, tables, dtype=dtype, fused=fused, masks=masks() if dropout else None, ranges=ranges
    )
    symbols = torch.randint(SYMBOLS, (STEPS + 1, LANES), generator=torch.Generator().manual_seed(9))
    state = draw(LANES, UNITS, seed=10).clamp(-1, 1).requires_grad_(state_gradient)
    s, states = state, []
    for step in range(STEPS):
        s = ops.highway(
            ops.linear("first", ops.dropout("hidden", s)), ops.rows("input", symbols[step]), s, "state"
        )
        s = ops.highway(ops.linear("second", ops.dropout("hidden", s)), ops.rows("bias"), s, "state")
        states.append(s)
    stacked = ops.dropout("output", torch.cat(states))
    logits = ops.output(ops.linear("output", stacked), ops.rows("output_bias"))
    return functional.cross_entropy(logits, symbols[1:].reshape(-1)), ops, state


def gradients(p: dict[str, Tensor], *, fused: bool, dropout: bool) -> tuple[float, dict[str, Tensor]]:
    loss, ops, state = losses(p, fused=fused, dropout=dropout)
    loss.backward()
    ops.finish()
    found = {name: value.grad for name, value in (p | {"state": state}).items() if value.grad is not None}
    return float(loss.detach()), found


@pytest.mark.parametrize("dropout", [False, True])
def test_fused_gradients_are_those_of_autograd(dropout: bool) -> None:
    plain_loss, plain = gradients(leaves(), fused=False, dropout=dropout)
    fused_loss, fused = gradients(leaves(), fused=True, dropout=dropout)
    assert fused_loss == pytest.approx(plain_loss, rel=1e-5)
    assert set(fused) == set(plain) == {*leaves(), "state"}
    for name, expected in plain.items():
        # The fused kernels differentiate the true tanh, autograd the rational function near it.
        assert expected.norm() > 0
        assert (fused[name] - expected).norm() < 1e-3 * expected.norm(), name


def test_gradients_add_up_over_segments() -> None:
    _, once = gradients(leaves(), fused=True, dropout=False)
    twice = leaves()
    for _ in range(2):
        gradients(twice, fused=True, dropout=False)
    for name, value in twice.items():
        assert value.grad is not None
        torch.testing.assert_close(value.grad, 2 * once[name])


def test_state_without_gradient_leaves_weights_theirs() -> None:
    expected, found = leaves(), leaves()
    for p, state_gradient in ((expected, True), (found, False)):
        loss, ops, _ = losses(p, fused=True, state_gradient=state_gradient)
        loss.backward()
        ops.finish()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].grad, value.grad)


def test_gradient_of_autograd_is_the_slope() -> None:
    """Finite differences along the gradient itself."""
    p = leaves()
    _, slopes = gradients(p, fused=False, dropout=True)
    norm = float(torch.cat([slopes[name].flatten() for name in p]).norm())
    step, ends = 5e-4, []  # short: the loss bends
    for sign in (1, -1):
        moved = {name: (value + sign * step * slopes[name] / norm).detach() for name, value in p.items()}
        ends.append(float(losses(moved, fused=False, dropout=True)[0].detach()))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(norm, rel=5e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_bfloat16_products_come_near_float32(fused: bool) -> None:
    with torch.no_grad():
        full, _, _ = losses(leaves(), fused=False)
        half, _, _ = losses(leaves(), fused=fused, dtype=torch.bfloat16)
    assert float(half) == pytest.approx(float(full), abs=0.02)
    assert float(half) != float(full)


def test_bfloat16_gradients_come_near_float32() -> None:
    p, q = leaves(), leaves()
    _, expected = gradients(p, fused=False, dropout=False)
    loss, ops, _ = losses(q, fused=True, dtype=torch.bfloat16)
    loss.backward()
    ops.finish()
    for name, value in q.items():
        assert value.grad is not None
        assert (value.grad - expected[name]).norm() < 0.05 * expected[name].norm(), name


def test_uncoupled_update_is_the_papers() -> None:
    a, s = draw(LANES, 3 * UNITS, seed=1, spread=2.0), draw(LANES, UNITS, seed=2)
    ops = FloatOps({"zero": torch.zeros(UNITS, 3 * UNITS)}, {"a": a})
    out = ops.highway_uncoupled(ops.linear("zero", s), ops.rows("a", torch.arange(LANES)), s, "state")
    h, t, c = a.double().split(UNITS, 1)
    torch.testing.assert_close(
        out.double(), h.tanh() * t.sigmoid() + s.double() * c.sigmoid(), atol=1e-4, rtol=0
    )


def test_rows_computed_beforehand_stand_in_for_the_table() -> None:
    p = leaves()
    table, s = (p["embedding"] @ p["input"]).detach(), draw(LANES, UNITS, seed=1)
    ops = FloatOps({"first": p["first"]}, {"input": table})
    index = torch.arange(LANES)
    by_index = ops.highway(ops.linear("first", s), ops.rows("input", index), s, "state")
    by_value = ops.highway(ops.linear("first", s), ops.rows("input", table[index]), s, "state")
    torch.testing.assert_close(by_value, by_index, atol=1e-6, rtol=1e-5)


def test_ranges_are_the_largest_magnitudes() -> None:
    ranges: dict[str, float] = {}
    linears, tables = {"zero": torch.zeros(UNITS, 2 * UNITS)}, {"a": torch.full((1, 2 * UNITS), -9.0)}
    ops = FloatOps(linears, tables, fused=False, ranges=ranges)
    seen = []
    for seed, spread in ((1, 0.5), (2, 3.0), (3, 0.1)):
        s = draw(LANES, UNITS, seed=seed, spread=spread)
        seen.append(ops.highway(ops.linear("zero", s), ops.rows("a"), s, "state"))
    assert ranges == {"state": float(seen[1].abs().max())}
