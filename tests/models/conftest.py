"""A small network for the tests of models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from torch import Generator, Tensor

from rhnzip.exact.weights import ExactWeights
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig


class Network(NamedTuple):
    cell: RHN
    parameters: dict[str, Tensor]
    weights: ExactWeights


@pytest.fixture(scope="session", params=[True, False], ids=["coupled", "uncoupled"])
def network(request: pytest.FixtureRequest) -> Network:
    """A network of random weights."""
    cell = RHN(RHNConfig(units=24, depth=2, embedding=16, coupled=request.param))
    parameters = cell.initial(Generator().manual_seed(1))
    sample = np.arange(640, dtype=np.uint8)
    return Network(cell, parameters, exact_weights(cell, parameters, sample))
