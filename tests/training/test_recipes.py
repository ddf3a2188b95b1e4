from __future__ import annotations

import pytest

from rhnzip.models.cell import parameter_count
from rhnzip.models.registry import make_cell
from rhnzip.training.recipes import PRESETS

# At 256 symbols and at those that the papers count (FACTS of their repositories).
COUNTS = {
    "zilly-enwik8": (46_247_792, {"vocabulary": 205, "embedding": 205}, 45_994_730),
    "zilly-enwik8-21m": (20_853_792, {"vocabulary": 205, "embedding": 205}, 20_677_230),
    "zilly-enwik8-23m": (23_732_792, {"vocabulary": 205, "embedding": 205}, 23_479_730),
    "suarez-ptb": (None, {"vocabulary": 50}, 15_262_736),
    "mujika-enwik8-fs2": (27_543_992, {"vocabulary": 205}, 27_484_985),
    "mujika-enwik8-fs4": (27_348_472, {"vocabulary": 205}, 27_298_135),
    "mujika-enwik8-fs4-large": (48_129_992, {"vocabulary": 205}, 48_055_685),
    "mujika-ptb-fs2": (None, {"vocabulary": 50}, 7_225_050),
    # less 4,000 weights of inputs that are always zero in the repository
    "mujika-ptb-fs4": (None, {"vocabulary": 50}, 6_561_050),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    ours, changes, published = COUNTS[name]
    network = dict(PRESETS[name].network)
    if ours is not None:
        assert parameter_count(make_cell(network)) == ours
    assert parameter_count(make_cell(network | changes)) == published


@pytest.mark.parametrize("name", PRESETS)
def test_every_recipe_has_a_network_and_a_line_about_it(name: str) -> None:
    preset = PRESETS[name]
    cell = make_cell(dict(preset.network))
    assert cell.config.vocabulary == 256
    assert 0 < len(preset.description) < 100


def test_compared_networks_are_of_about_one_size() -> None:
    kinds = ("fs", "stacked", "sequential")
    counts = [
        parameter_count(make_cell(dict(PRESETS[f"mujika-comparison-{kind}"].network))) for kind in kinds
    ]
    assert max(counts) < 1.25 * min(counts)
