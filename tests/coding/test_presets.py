"""The presets, and the rule by which a block's length picks its shape."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhnzip.adaptation import from_parameters
from rhnzip.coding.presets import PRESETS, Mode
from rhnzip.errors import RhnzipError

MODES = {
    f"{name}, {kind}": (preset, model)
    for name, preset in PRESETS.items()
    for kind, model in (("trained", "rhn-4m"), ("scratch", "scratch:2x64"))
    if kind == "trained" or preset.scratch
}
modes = st.sampled_from(sorted(MODES))


def mode_of(name: str) -> Mode:
    preset, model = MODES[name]
    return preset.mode(model)


@given(name=modes, length=st.integers(1, 1 << 32))
def test_shape_fits_every_length(name: str, length: int) -> None:
    mode = mode_of(name)
    shape = mode.shape(length)
    assert 1 <= shape.lanes <= min(length, mode.max_lanes)
    assert shape.segment == mode.segment


@given(name=modes, length=st.integers(1, 1 << 24), more=st.integers(0, 1 << 20))
def test_longer_blocks_have_no_fewer_lanes(name: str, length: int, more: int) -> None:
    mode = mode_of(name)
    assert mode.shape(length).lanes <= mode.shape(length + more).lanes
    assert mode.shape(length) == mode.shape(length)


@pytest.mark.parametrize("name", MODES)
def test_lanes_are_about_as_long_as_meant(name: str) -> None:
    mode = mode_of(name)
    for lanes in {1, min(2, mode.max_lanes), mode.max_lanes}:
        assert mode.shape(lanes * mode.lane_bytes).lanes == lanes
    assert mode.shape(1 << 40).lanes == mode.max_lanes


def test_names_and_numbers() -> None:
    """Numbers stand in frame headers: they may not change."""
    assert {name: preset.number for name, preset in PRESETS.items()} == {"fast": 0, "default": 1, "best": 2}
    assert all(preset.name == name for name, preset in PRESETS.items())


@pytest.mark.parametrize("name", MODES)
def test_learning_presets_have_segments_and_settings(name: str) -> None:
    (preset, _), mode = MODES[name], mode_of(name)
    assert preset.learning == (mode.segment > 0) == bool(mode.parameters)
    if mode.settings:
        stored = from_parameters(mode.parameters)
        for field in fields(stored):
            expected = getattr(mode.settings, field.name)
            assert getattr(stored, field.name) == pytest.approx(expected, rel=1e-6)


def test_ensembles_are_used_as_their_trained_members() -> None:
    best = PRESETS["best"]
    assert best.mode("scratch:2x64+rhn-4m") == best.mode("rhn-4m+scratch:2x64") == best.trained
    assert best.mode("scratch:2x64+scratch:2x64:1") == best.scratch != best.trained


def test_a_network_that_knows_nothing_has_to_learn() -> None:
    with pytest.raises(RhnzipError, match="learns nothing"):
        PRESETS["fast"].mode("scratch:2x64")
