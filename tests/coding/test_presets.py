"""The presets, and the rule by which a block's length picks its shape."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhnzip.adaptation import from_parameters
from rhnzip.coding.presets import PRESETS
from rhnzip.errors import RhnzipError

names = st.sampled_from(sorted(PRESETS))


@given(name=names, length=st.integers(1, 1 << 32))
def test_shape_fits_every_length(name: str, length: int) -> None:
    preset = PRESETS[name]
    shape = preset.shape(length)
    assert 1 <= shape.lanes <= min(length, preset.max_lanes)
    assert shape.segment == preset.segment


@given(name=names, length=st.integers(1, 1 << 24), more=st.integers(0, 1 << 20))
def test_longer_blocks_have_no_fewer_lanes(name: str, length: int, more: int) -> None:
    preset = PRESETS[name]
    assert preset.shape(length).lanes <= preset.shape(length + more).lanes
    assert preset.shape(length) == preset.shape(length)


@pytest.mark.parametrize("name", PRESETS)
def test_lanes_are_about_as_long_as_meant(name: str) -> None:
    preset = PRESETS[name]
    for lanes in (1, 2, preset.max_lanes):
        assert preset.shape(lanes * preset.lane_bytes).lanes == lanes
    assert preset.shape(1 << 40).lanes == preset.max_lanes


def test_names_and_numbers() -> None:
    """Numbers stand in frame headers: they may not change."""
    assert {name: preset.number for name, preset in PRESETS.items()} == {"fast": 0, "default": 1, "best": 2}
    assert all(preset.name == name for name, preset in PRESETS.items())


@pytest.mark.parametrize("name", PRESETS)
def test_learning_presets_have_segments_and_settings(name: str) -> None:
    preset = PRESETS[name]
    assert preset.learning == (preset.segment > 0)
    for model in ("rhn-4m", "scratch:2x64"):
        if preset.learning:
            settings = from_parameters(preset.parameters(model))
            chosen = preset.scratch_settings if model.startswith("scratch:") else preset.settings
            for field in fields(settings):
                expected = getattr(chosen, field.name)
                assert getattr(settings, field.name) == pytest.approx(expected, rel=1e-6)
        elif model.startswith("scratch:"):
            with pytest.raises(RhnzipError, match="learns nothing"):
                preset.parameters(model)
        else:
            assert preset.parameters(model) == {}
