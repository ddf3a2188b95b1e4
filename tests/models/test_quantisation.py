"""From a trained network to an exact one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rhnzip.errors import ModelError
from rhnzip.models.quantisation import exact_weights, measured_ranges
from rhnzip.models.rhn import RHN, RHNConfig

SAMPLE = np.random.default_rng(0).integers(0, 256, 3200).astype(np.uint8)


def test_weights_follow_the_parameters(network: Any) -> None:
    cell, parameters, weights = network
    folded = cell.fold(parameters)
    assert set(weights.linears) == {"recurrent.0", "recurrent.1", "output"}
    assert set(weights.tables) == {"input", "bias.1", "output_bias"}
    scale = weights.scales["state"]
    for name, linear in weights.linears.items():
        restored = linear.weight.astype(np.float64) * linear.scale * scale
        step = np.abs(folded.linears[name].numpy()).max(0) / 127
        assert (np.abs(restored - folded.linears[name].numpy()) <= step * 0.5001).all()
    for name, table in weights.tables.items():
        assert (table == folded.tables[name].numpy()).all()


def test_scale_of_a_bounded_value_is_fixed_and_of_another_measured() -> None:
    for coupled in (True, False):
        cell = RHN(RHNConfig(24, 2, embedding=16, coupled=coupled))
        parameters = cell.initial(torch.Generator().manual_seed(1))
        scale = exact_weights(cell, parameters, SAMPLE).scales["state"]
        if coupled:
            assert scale == 127
            assert exact_weights(cell, parameters, SAMPLE[:0]).scales["state"] == 127
        else:
            largest = measured_ranges(cell, cell.fold(parameters), SAMPLE)["state"]
            assert scale == float(np.float32(127 / largest)) != 127


def test_measured_range_is_the_largest_state() -> None:
    """Zero weights, gates h = 1, t = c: the state grows to h t / (1 - c)."""
    cell = RHN(RHNConfig(4, 1, embedding=2, coupled=False))
    parameters = {name: torch.zeros(shape) for name, shape in cell.shapes().items()}
    parameters["bias.0"][:4], parameters["bias.0"][4:8], parameters["bias.0"][8:] = 20.0, 20.0, 1.0
    ranges = measured_ranges(cell, cell.fold(parameters), SAMPLE)
    assert ranges["state"] == pytest.approx(1 / (1 - 1 / (1 + np.exp(-1))), rel=1e-3)


def test_short_sample_measures_too() -> None:
    cell = RHN(RHNConfig(4, 1, embedding=2, coupled=False))
    parameters = cell.initial(torch.Generator().manual_seed(1))
    assert exact_weights(cell, parameters, SAMPLE[:3]).scales["state"] > 0
    with pytest.raises(ModelError, match="sample"):
        exact_weights(cell, parameters, SAMPLE[:0])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e19])
@pytest.mark.parametrize("name", ["embedding", "recurrent.1", "output", "output_bias"])
def test_parameters_out_of_range_are_refused(value: float, name: str, network: Any) -> None:
    cell, parameters, _ = network
    changed = {key: tensor.clone() for key, tensor in parameters.items()}
    changed[name].view(-1)[3] = value
    with pytest.raises(ModelError):
        exact_weights(cell, changed, SAMPLE)


def test_tiny_parameters_become_zero(network: Any) -> None:
    cell, parameters, _ = network
    changed = {key: tensor.clone() for key, tensor in parameters.items()}
    changed["output"][:, 7] = 1e-15  # a column whose scale would fall below 2^-60
    changed["output_bias"][7] = 1e-30
    weights = exact_weights(cell, changed, SAMPLE)
    assert not weights.linears["output"].weight[:, 7].any()
    assert weights.linears["output"].scale[7] == weights.tables["output_bias"][0, 7] == 0
