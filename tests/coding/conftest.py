"""A small network for the tests of coding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from torch import Generator

from rhnzip.exact.weights import ExactWeights
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig


class Network(NamedTuple):
    cell: RHN
    weights: ExactWeights


@pytest.fixture(scope="session")
def network() -> Network:
    """A network of random weights, large enough for its counts to differ from step to step."""
    cell = RHN(RHNConfig(units=24, depth=2, embedding=16))
    parameters = cell.initial(Generator().manual_seed(1))
    parameters["output"] *= 8
    return Network(cell, exact_weights(cell, parameters, np.zeros(0, np.uint8)))
