"""Every cell against its paper's equations, written anew in float64; gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rhnzip.exact.floating import FloatOps
from rhnzip.models.cell import Cell
from rhnzip.models.evaluation import segment_loss
from rhnzip.models.registry import make_cell

Vector = NDArray[np.float64]
Parameters = dict[str, Vector]
Reader = Callable[[list[int]], list[Vector]]
V = 11
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


def norm(x: Vector, gain: Vector, shift: Vector) -> Vector:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-3) * gain + shift


def softmax(x: Vector) -> Vector:
    e = np.exp(x - x.max())
    return e / e.sum()


def highway(h: Vector, t: Vector, s: Vector) -> Vector:
    return np.tanh(h) * sigmoid(t) + s * (1 - sigmoid(t))


def rhn_layers(p: Parameters, x: Vector, s: Vector, depth: int) -> Vector:
    """Zilly et al. 2017, eqs. 6-9, coupled."""
    for layer in range(depth):
        a = s @ p[f"recurrent.{layer}"] + p[f"bias.{layer}"] + (0 if layer else x @ p["input"])
        s = highway(*np.split(a, 2), s)
    return s


def output(p: Parameters, h: Vector) -> Vector:
    return softmax(h @ p["output"] + p["output_bias"])


def read_rhn(p: Parameters, text: list[int]) -> list[Vector]:
    s, seen = np.zeros(6), []
    for byte in text:
        s = rhn_layers(p, p["embedding"][byte], s, 3)
        y = s
        for k in range(2):  # Srivastava et al. 2015, eq. 3
            a = y @ p[f"highway.{k}"] + p[f"highway_bias.{k}"]
            y = highway(*np.split(a, 2), y)
        seen.append(output(p, y))
    return seen


def read_uncoupled(p: Parameters, text: list[int]) -> list[Vector]:
    s, seen = np.zeros(6), []
    for byte in text:
        for layer in range(2):
            x = p["embedding"][byte] @ p["input"] if layer == 0 else 0
            h, t, c = np.split(s @ p[f"recurrent.{layer}"] + p[f"bias.{layer}"] + x, 3)
            s = np.tanh(h) * sigmoid(t) + s * sigmoid(c)
        seen.append(output(p, s))
    return seen


def read_hsg(p: Parameters, text: list[int]) -> list[Vector]:
    """Shoham & Permuter 2018."""
    s, seen = np.zeros(6), []
    for byte in text:
        new = rhn_layers(p, p["embedding"][byte], s, 2)
        g = sigmoid(s @ p["state_gate.previous"] + new @ p["state_gate.new"] + p["state_gate_bias"])
        s = g * s + (1 - g) * new
        seen.append(output(p, s))
    return seen


def read_hyper(p: Parameters, text: list[int]) -> list[Vector]:
    """Suarez 2017: the small network's micro-steps scale those of the main one."""
    s, e, seen = np.zeros(6), np.zeros(4), []
    for byte in text:
        x = p["embedding"][byte]
        for layer in range(2):
            a = e @ p[f"hyper.{layer}"] + p[f"hyper.bias.{layer}"]
            if layer == 0:
                a = a + x @ p["hyper.input"] + p["hyper.input_bias"]
            e = highway(*np.split(a, 2), e)
            z = e @ p[f"scale.{layer}"] + p[f"scale_bias.{layer}"]
            both = np.concatenate([z, z])
            a = (s @ p[f"main.{layer}"]) * both + p[f"main.bias.{layer}"]
            if layer == 0:
                a = a + (x @ p["main.input"]) * both + p["main.input_bias"]
            s = highway(*np.split(a, 2), s)
        seen.append(output(p, s))
    return seen


def lstm(
    p: Parameters,
    name: str,
    x: Vector | None,
    state: tuple[Vector, Vector],
    keep: tuple[float, float] = (1, 1),
) -> tuple[Vector, Vector]:
    """LSTM; with layer norm and zoneout's expectation as in Mujika et al. 2017 where there are gains."""
    h, c = state
    a = h @ p[f"{name}.recurrent"] + p[f"{name}.bias"]
    if x is not None:
        a = a + x @ p[f"{name}.input"]
    gates = np.split(a, 4)
    normed = f"{name}.gain" in p
    if normed:
        gains, shifts = np.split(p[f"{name}.gain"], 4), np.split(p[f"{name}.shift"], 4)
        gates = [norm(*three) for three in zip(gates, gains, shifts, strict=True)]
    i, j, f, o = gates
    new = c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j)
    shown = norm(new, p[f"{name}.cell_gain"], p[f"{name}.cell_shift"]) if normed else new
    hidden = np.tanh(shown) * sigmoid(o)
    return keep[0] * hidden + (1 - keep[0]) * h, keep[1] * new + (1 - keep[1]) * c


def zero(units: int) -> tuple[Vector, Vector]:
    return np.zeros(units), np.zeros(units)


def read_stacked(p: Parameters, text: list[int]) -> list[Vector]:
    states, seen = [zero(6), zero(6)], []
    for byte in text:
        x = p["embedding"][byte]
        for n in range(2):
            states[n] = lstm(p, f"lstm.{n}", x, states[n])
            x = states[n][0]
        seen.append(output(p, x))
    return seen


def read_skip(p: Parameters, text: list[int]) -> list[Vector]:
    """Graves 2013, section 2: eqs. 1-3 with skip connections, without peepholes."""
    states, seen = [zero(6), zero(6), zero(6)], []
    for byte in text:
        below: Vector | None = None
        for n in range(3):
            name, x = f"lstm.{n}", p["embedding"][byte]
            if below is None:
                states[n] = lstm(p, name, x, states[n])
            else:
                both = {**p, f"{name}.input": np.concatenate([p[f"{name}.input"], p[f"{name}.skip"]])}
                states[n] = lstm(both, name, np.concatenate([below, x]), states[n])
            below = states[n][0]
        seen.append(output(p, np.concatenate([h for h, _ in states])))
    return seen


def read_sequential(p: Parameters, text: list[int]) -> list[Vector]:
    state, seen = zero(6), []
    for byte in text:
        for n in range(3):
            state = lstm(p, f"lstm.{n}", None if n else p["embedding"][byte], state)
        seen.append(output(p, state[0]))
    return seen


def read_fast_slow(p: Parameters, text: list[int]) -> list[Vector]:
    """Mujika et al. 2017, eqs. 1-5, three fast cells."""
    fast, slow, seen = zero(6), zero(5), []
    keep = (0.9, 0.6)
    for byte in text:
        fast = lstm(p, "fast.0", p["embedding"][byte], fast, keep)
        slow = lstm(p, "slow", fast[0], slow, keep)
        fast = lstm(p, "fast.1", slow[0], fast, keep)
        fast = lstm(p, "fast.2", None, fast, keep)
        seen.append(output(p, fast[0]))
    return seen


FAST_SLOW = {"cell": "fsrnn", "fast_units": 6, "slow_units": 5, "fast_cells": 3}
SIZES = {"embedding": 4, "vocabulary": V}
CASES: dict[str, tuple[dict[str, Any], Callable[[Parameters, list[int]], list[Vector]]]] = {
    "rhn": ({"cell": "rhn", "units": 6, "depth": 3, "head_layers": 2}, read_rhn),
    "uncoupled": ({"cell": "rhn", "units": 6, "depth": 2, "coupled": False}, read_uncoupled),
    "hsg": ({"cell": "hsg", "units": 6, "depth": 2}, read_hsg),
    "hyper_rhn": ({"cell": "hyper_rhn", "units": 6, "depth": 2, "hyper_units": 4}, read_hyper),
    "stacked": ({"cell": "lstm", "units": 6, "layers": 2, "norm": False}, read_stacked),
    "skip": ({"cell": "lstm", "units": 6, "layers": 3, "skip": True, "norm": False}, read_skip),
    "sequential": ({"cell": "lstm", "units": 6, "layers": 3, "sequential": True}, read_sequential),
    "fast-slow": (FAST_SLOW | {"keep_hidden": 0.9, "keep_cell": 0.6}, read_fast_slow),
}  # fmt: skip
ALL = pytest.mark.parametrize("name", CASES)


def network(name: str) -> tuple[Cell, dict[str, torch.Tensor]]:
    """A cell, and parameters none of which is at a value that hides something."""
    cell = make_cell(CASES[name][0] | SIZES)
    generator = torch.Generator().manual_seed(5)
    parameters = {
        key: value + 0.3 * torch.randn(value.shape, generator=generator)
        for key, value in cell.initial(generator).items()
    }
    return cell, parameters


@ALL
@pytest.mark.parametrize("fused", [False, True])
def test_forward(name: str, fused: bool) -> None:
    cell, parameters = network(name)
    wanted = CASES[name][1]({key: value.double().numpy() for key, value in parameters.items()}, TEXT)
    folded = cell.fold(parameters)
    ops = FloatOps(folded.linears, folded.tables, fused=fused)
    state = tuple(torch.zeros(1, width) for width in cell.state_widths())
    for byte, expected in zip(TEXT, wanted, strict=True):
        state = cell.step(ops, torch.tensor([byte]), state)
        got = torch.softmax(cell.head(ops, state), dim=1)
        np.testing.assert_allclose(got.detach().numpy()[0], expected, atol=2e-4)


@ALL
def test_gradients(name: str) -> None:
    cell, parameters = network(name)
    wide = {key: value.double() for key, value in parameters.items()}
    text = torch.tensor(TEXT).unsqueeze(1)

    def loss(values: dict[str, torch.Tensor], fused: bool) -> tuple[torch.Tensor, FloatOps]:
        folded = cell.fold(values)
        dtype = next(iter(values.values())).dtype
        ops = FloatOps(folded.linears, folded.tables, fused=fused, dtype=dtype)
        state = tuple(torch.zeros(1, width, dtype=dtype) for width in cell.state_widths())
        return segment_loss(cell, ops, text[:-1], text[1:], state)[0], ops

    leaves = {key: value.clone().requires_grad_() for key, value in parameters.items()}
    total, ops = loss(leaves, True)
    total.backward()  # type: ignore[no-untyped-call]
    ops.finish()
    rng = np.random.default_rng(7)
    for key, value in wide.items():
        direction = torch.tensor(rng.standard_normal(value.shape))
        ends = [float(loss(wide | {key: value + step * direction}, False)[0]) for step in (-1e-4, 1e-4)]
        slope = (ends[1] - ends[0]) / 2e-4
        gradient = leaves[key].grad
        assert gradient is not None
        along = float((gradient.double() * direction).sum())
        assert along == pytest.approx(slope, rel=0.02, abs=2e-3), key
