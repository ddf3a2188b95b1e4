"""The counter-based generator draws the same numbers for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rhnzip.exact.random import random_bits, uniform_int8, uniform_unit

MASK = (1 << 64) - 1


def splitmix64(stream: str, size: int) -> list[int]:
    """SplitMix64 in Python's integers."""
    state = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")
    values = []
    for _ in range(size):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        values.append(z ^ (z >> 31))
    return values


@pytest.mark.parametrize("stream", ["", "weights", "a stream with ü"])
def test_bits_are_splitmix64(stream: str) -> None:
    assert random_bits(stream, 1000).tolist() == splitmix64(stream, 1000)


def test_bits_are_pinned() -> None:
    assert random_bits("pinned", 2).tolist() == [0xA3C377C8E69EECE9, 0x545C69196CEC185E]
    assert uniform_int8("pinned", 8).tolist() == [-123, -124, 114, 21, 17, 0, -39, 55]


def test_units_are_the_upper_24_bits() -> None:
    units = uniform_unit("unit", 1000)
    assert units.dtype == np.float32
    assert units.tolist() == [(value >> 40) / (1 << 24) for value in splitmix64("unit", 1000)]
    assert 0 <= units.min() and units.max() < 1


def test_int8_covers_its_range() -> None:
    values = uniform_int8("int8", 20_000)
    assert values.dtype == np.int8
    assert values.tolist() == [value % 255 - 127 for value in splitmix64("int8", 20_000)]
    assert set(values.tolist()) == set(range(-127, 128))


def test_longer_stream_starts_alike() -> None:
    assert (random_bits("s", 10) == random_bits("s", 100)[:10]).all()
    assert random_bits("s", 0).shape == (0,)
