"""Bits per byte in float and in the exact arithmetic: nearly the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rhnzip.exact.backend import get_backend
from rhnzip.exact.floating import FloatOps
from rhnzip.models.evaluation import evaluation_lanes, exact_bpc, float_bpc, in_lanes, segment_loss
from rhnzip.models.quantisation import exact_weights

TEXT = np.frombuffer(b"the cat sat on the mat, and the rat sat on the cat. " * 30, np.uint8)


def train_a_little(cell: Any, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Thirty steps of Adam on the text."""
    trained = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    optimizer = torch.optim.Adam(trained.values(), lr=0.02)
    data = torch.from_numpy(in_lanes(TEXT[:1000], 50).T.astype(np.int64))
    for _ in range(30):
        folded = cell.fold(trained)
        ops = FloatOps(folded.linears, folded.tables, fused=False)
        state = tuple(torch.zeros(50, width) for width in cell.state_widths())
        loss, _ = segment_loss(cell, ops, data[:-1], data[1:], state)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.detach() for name, value in trained.items()}


def test_exact_is_near_float(network: Any) -> None:
    cell, parameters, weights = network
    backend = get_backend()
    random = float_bpc(cell, parameters, TEXT)
    assert 7.5 < random < 9
    assert exact_bpc(cell, weights, TEXT, backend) == pytest.approx(random, abs=0.02)
    trained = train_a_little(cell, parameters)
    learned = float_bpc(cell, trained, TEXT)
    assert learned < 4
    assert exact_bpc(cell, exact_weights(cell, trained, TEXT), TEXT, backend) == pytest.approx(
        learned, abs=0.02
    )


def test_segments_do_not_change_the_figure(network: Any) -> None:
    cell, parameters, _ = network
    whole = float_bpc(cell, parameters, TEXT[:300], segment=1000)
    assert float_bpc(cell, parameters, TEXT[:300], segment=7) == pytest.approx(whole, abs=1e-5)


def test_uniform_network_takes_eight_bits(network: Any) -> None:
    cell, parameters, _ = network
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
    assert float_bpc(cell, zeros, TEXT[:100]) == pytest.approx(8, abs=1e-5)
    assert exact_bpc(cell, exact_weights(cell, zeros, TEXT), TEXT[:100], get_backend()) == pytest.approx(
        8, abs=1e-6
    )


def test_bias_alone_gives_its_entropy(network: Any) -> None:
    """With nothing but an output bias, the cost of a symbol is its -log2 p."""
    cell, parameters, _ = network
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
    zeros["output_bias"][65] = math.log(255.0)  # p(A) = 1/2
    text = np.full(64, 65, np.uint8)
    assert float_bpc(cell, zeros, text) == pytest.approx(1, abs=1e-5)
    assert exact_bpc(cell, exact_weights(cell, zeros, TEXT), text, get_backend()) == pytest.approx(
        1, abs=2e-3
    )


def test_lanes() -> None:
    assert in_lanes(np.arange(7, dtype=np.uint8), 3).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert [evaluation_lanes(n) for n in (1, 8192, 20_000, 1 << 20)] == [1, 1, 2, 128]
