from __future__ import annotations

from rhnzip.models.cell import parameter_count
from rhnzip.models.registry import make_cell
from rhnzip.training.recipes import PRESETS


def test_zilly_enwik8_has_the_parameters_of_the_paper() -> None:
    network = dict(PRESETS["zilly-enwik8"].network)
    assert parameter_count(make_cell(network)) == 46_247_792
    # The published count is for the 205 bytes that occur in enwik8.
    assert parameter_count(make_cell(network | {"vocabulary": 205, "embedding": 205})) == 45_994_730
