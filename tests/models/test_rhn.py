"""The recurrent highway network against the paper: its equations in float64, and its parameter counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from rhnzip.exact.floating import FloatOps
from rhnzip.models.cell import parameter_count
from rhnzip.models.rhn import RHN, RHNConfig

Array = NDArray[np.float64]


@pytest.mark.parametrize(
    ("units", "depth", "vocabulary", "expected"),
    [
        (1500, 10, 205, 45_994_730),
        (1500, 10, 256, 46_247_792),
        (1000, 10, 205, 20_677_230),
        (1000, 10, 256, 20_853_792),
        (1500, 5, 205, 23_479_730),
        (1500, 5, 256, 23_732_792),
    ],
)
def test_parameter_counts_of_enwik8(units: int, depth: int, vocabulary: int, expected: int) -> None:
    config = RHNConfig(units=units, depth=depth, vocabulary=vocabulary, embedding=min(vocabulary, units))
    assert parameter_count(RHN(config)) == expected


def test_parameter_count_of_penn_treebank() -> None:
    # The published code adds a bias to the first layer's input and another to its state; one is enough here.
    assert parameter_count(RHN(RHNConfig(1000, 7, embedding=27, vocabulary=50))) == 14_121_400 - 2 * 1000


def test_uncoupled_gate_has_weights_of_its_own() -> None:
    coupled, uncoupled = (RHN(RHNConfig(10, 3, embedding=4, coupled=c)) for c in (True, False))
    assert parameter_count(uncoupled) - parameter_count(coupled) == 4 * 10 + 3 * (10 * 10 + 10)


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def papers_logits(config: RHNConfig, p: dict[str, Tensor], symbols: NDArray[np.int64]) -> Array:
    """Equations 6-9 for symbols (T, B), one gate at a time, in float64: logits (T, B, V)."""
    value = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in p.items()}
    gates = ("h", "t") if config.coupled else ("h", "t", "c")

    def of(name: str, gate: str) -> Array:
        at = gates.index(gate) * config.units
        part: Array = value[name][..., at : at + config.units]
        return part

    s = np.zeros((symbols.shape[1], config.units))
    logits = []
    for row in symbols:
        x = np.eye(config.vocabulary)[row] @ value["embedding"]
        for layer in range(config.depth):
            indicator = 1.0 if layer == 0 else 0.0

            def affine(
                gate: str, layer: int = layer, s: Array = s, x: Array = x, indicator: float = indicator
            ) -> Array:
                recurrent = s @ of(f"recurrent.{layer}", gate) + of(f"bias.{layer}", gate)
                result: Array = indicator * (x @ of("input", gate)) + recurrent
                return result

            h, t = np.tanh(affine("h")), sigmoid(affine("t"))
            c = 1 - t if config.coupled else sigmoid(affine("c"))
            s = h * t + s * c
        logits.append(s @ value["output"] + value["output_bias"])
    return np.stack(logits)


def random_parameters(cell: RHN) -> dict[str, Tensor]:
    """Parameters with biases too, which start at zero otherwise."""
    generator = Generator().manual_seed(3)
    return {
        name: value + torch.randn(value.shape, generator=generator) * 0.3
        for name, value in cell.initial(generator).items()
    }


def our_logits(cell: RHN, ops: FloatOps, inputs: Any, lanes: int) -> Tensor:
    state: tuple[Tensor, ...] = (torch.zeros(lanes, cell.config.units),)
    logits = []
    for row in inputs:
        state = cell.step(ops, row, state)
        logits.append(cell.head(ops, state))
    return torch.stack(logits)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("coupled", [True, False])
@torch.no_grad()
def test_forward_is_the_papers(coupled: bool, fused: bool) -> None:
    cell = RHN(RHNConfig(units=20, depth=3, embedding=7, vocabulary=13, coupled=coupled))
    parameters = random_parameters(cell)
    symbols = np.random.default_rng(5).integers(0, 13, (12, 4))
    folded = cell.fold(parameters)
    ops = FloatOps(folded.linears, folded.tables, fused=fused)
    ours = our_logits(cell, ops, torch.from_numpy(symbols), 4)
    papers = papers_logits(cell.config, parameters, symbols)
    assert papers.std() > 0.3
    assert np.abs(ours.numpy() - papers).max() < 5e-4


@torch.no_grad()
def test_folded_input_is_the_embedded_one() -> None:
    cell = RHN(RHNConfig(units=20, depth=3, embedding=7, vocabulary=13))
    parameters = random_parameters(cell)
    symbols = torch.from_numpy(np.random.default_rng(5).integers(0, 13, (12, 4)))
    folded = cell.fold(parameters)
    ops = FloatOps(folded.linears, folded.tables)
    unfolded = cell.embed(parameters, symbols, torch.ones(4, 13), torch.ones(4, 7))
    assert unfolded.shape == (12, 4, 40)
    torch.testing.assert_close(
        our_logits(cell, ops, unfolded, 4), our_logits(cell, ops, symbols, 4), atol=1e-5, rtol=1e-5
    )


def test_input_dropout_drops_whole_symbols_and_embedding_units() -> None:
    cell = RHN(RHNConfig(units=5, depth=1, embedding=3, vocabulary=4))
    parameters = random_parameters(cell)
    symbols = torch.tensor([[0, 1], [2, 0]])
    symbol_mask = torch.tensor([[2.0, 2, 0, 2], [0, 2, 2, 2]])
    input_mask = torch.tensor([[1.0, 0, 3], [3, 1, 0]])
    rows = cell.embed(parameters, symbols, symbol_mask, input_mask)
    for step in range(2):
        for lane in range(2):
            symbol = int(symbols[step, lane])
            x = parameters["embedding"][symbol] * symbol_mask[lane, symbol] * input_mask[lane]
            expected = x @ parameters["input"] + parameters["bias.0"]
            torch.testing.assert_close(rows[step, lane], expected)


def test_initial_gates_carry() -> None:
    for coupled in (True, False):
        cell = RHN(RHNConfig(units=5, depth=2, embedding=3, gate_bias=-4.0, init_range=0.04, coupled=coupled))
        p = cell.initial(Generator().manual_seed(0))
        assert {name: tuple(value.shape) for name, value in p.items()} == cell.shapes()
        assert all(float(p[name].abs().max()) <= 0.04 for name in p if p[name].dim() == 2)
        gates = p["bias.1"].reshape(-1, 5)[:, 0].tolist()
        assert gates == ([0, -4] if coupled else [0, -4, 4])
        again = cell.initial(Generator().manual_seed(0))
        assert all(torch.equal(p[name], again[name]) for name in p)


@pytest.mark.parametrize("coupled", [True, False])
def test_folded_shapes_are_those_of_fold(coupled: bool) -> None:
    cell = RHN(RHNConfig(units=12, depth=3, embedding=7, coupled=coupled))
    folded = cell.fold(cell.initial(torch.Generator().manual_seed(1)))
    shapes = cell.folded_shapes()
    assert {name: tuple(value.shape) for name, value in folded.linears.items()} == shapes.linears
    assert {name: tuple(value.shape) for name, value in folded.tables.items()} == shapes.tables
