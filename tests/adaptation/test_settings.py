"""The update's settings in a frame header."""

from __future__ import annotations

import struct
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhnzip.adaptation import PARAMETER_IDS, from_parameters, to_parameters
from rhnzip.errors import FormatError
from rhnzip.exact.backend import Settings

TINY = 2.0**-60
IDS = {name: number for number, name in PARAMETER_IDS.items()}
GOOD = to_parameters(
    Settings(rate=2.0**-10, boost=4.0, boost_updates=8.0, beta=0.5, decay=0.25, floor=0.125, drift=0.5)
)


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    some = st.floats(low or TINY, high, width=32)
    return some if low else st.just(0.0) | some


def rounded(settings: Settings) -> Settings:
    """The same with all values as float32."""
    return from_parameters(to_parameters(settings))


SETTINGS = st.builds(
    Settings,
    rate=numbers(0, 1),
    boost=numbers(0, 2.0**20),
    boost_updates=numbers(2.0**-20, 2.0**20),
    beta=numbers(0, 1),
    decay=numbers(0, 1),
    floor=numbers(2.0**-40, 1),
    drift=numbers(0, 1),
) | st.builds(Settings, replay=st.integers(1, 256), replay_share=numbers(2.0**-20, 1)).map(rounded)


@given(chosen=SETTINGS)
def test_settings_come_back(chosen: Settings) -> None:
    assert from_parameters(to_parameters(chosen)) == chosen


def test_settings_become_float32() -> None:
    """Encoder and decoder both work with what the header says, not with what the encoder was given."""
    stored = from_parameters(to_parameters(Settings(rate=0.1)))
    assert stored.rate == struct.unpack("<f", struct.pack("<f", 0.1))[0] != 0.1


def test_every_setting_has_an_id_of_its_own() -> None:
    assert sorted(IDS) == sorted(field.name for field in fields(Settings))
    assert len(IDS) == len(PARAMETER_IDS) and all(1 <= number <= 255 for number in PARAMETER_IDS)


def test_bits_are_those_of_the_format() -> None:
    values = (2.0**-10, 4.0, 8.0, 0.5, 0.25, 0.125)
    assert GOOD == {number: bits(value) for number, value in enumerate(values, 1)} | {9: bits(0.5)}


def test_frames_that_do_not_replay_do_not_mention_it() -> None:
    replaying = to_parameters(Settings(replay=3, replay_share=0.25))
    assert {replaying[7], replaying[8]} == {bits(3), bits(0.25)}
    assert set(to_parameters(Settings(replay=0, replay_share=0.25))) == {1, 2, 3, 4, 5, 6, 9}


def test_unknown_id_is_refused() -> None:
    with pytest.raises(FormatError, match="parameter 77"):
        from_parameters(GOOD | {77: 0})


@pytest.mark.parametrize("name", IDS)
def test_missing_setting_is_refused(name: str) -> None:
    whole = GOOD | {7: bits(3), 8: bits(0.25)}
    with pytest.raises(FormatError, match=name):
        from_parameters({number: value for number, value in whole.items() if number != IDS[name]})


def test_no_settings_are_refused() -> None:
    with pytest.raises(FormatError, match="does not say"):
        from_parameters({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", -(2.0**-30)),
        ("rate", 1.5),
        ("rate", 2.0**-61),
        ("rate", 2.0**-140),  # subnormal
        ("rate", -(2.0**-140)),
        ("boost", -1.0),
        ("boost", 2.0**21),
        ("boost_updates", 0.0),
        ("boost_updates", 2.0**21),
        ("beta", 1.0 + 2.0**-23),
        ("beta", 2.0**-149),
        ("decay", -1.0),
        ("decay", 2.0),
        ("drift", -1.0),
        ("drift", 1.5),
        ("floor", 0.0),
        ("floor", 2.0**-41),
        ("floor", 2.0),
        ("replay", 0.0),
        ("replay", 2.5),
        ("replay", 257.0),
        ("replay_share", 0.0),
        ("replay_share", 2.0**-21),
        ("replay_share", 1.5),
        *((name, special) for name in IDS for special in (float("nan"), float("inf"), float("-inf"))),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(FormatError, match=name):
        from_parameters(GOOD | {IDS[name]: bits(value)})


@pytest.mark.parametrize("name", ["rate", "boost", "beta", "decay", "drift"])
@pytest.mark.parametrize("value", [0.0, TINY, 1.0])
def test_ends_of_a_range_are_taken(name: str, value: float) -> None:
    assert getattr(from_parameters(GOOD | {IDS[name]: bits(value)}), name) == value
