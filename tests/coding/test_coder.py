"""The range coder under integer counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhnzip.coding.coder import Decoder, Encoder
from rhnzip.errors import CorruptError
from rhnzip.exact.constants import COUNT_TOTAL

Counts = NDArray[np.float32]


def draw_counts(rng: np.random.Generator, rows: int) -> Counts:
    """Rows that sum to 2^24 - 256, from even to all on one symbol."""
    counts = np.zeros((rows, 256), np.float32)
    for row in counts:
        share = rng.random(256) ** rng.choice([0.0, 1.0, 30.0, 3000.0])
        exact = np.floor(share / share.sum() * COUNT_TOTAL).astype(np.int64)
        exact[share.argmax()] += COUNT_TOTAL - exact.sum()
        row[:] = exact
    return counts


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 40), max_size=8))
@settings(max_examples=50, deadline=None)
def test_round_trip_of_any_symbol(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    steps = [(rng.integers(0, 256, n, dtype=np.int32), draw_counts(rng, n)) for n in sizes]
    encoder, bits = Encoder(), 0.0
    for symbols, counts in steps:
        encoder.encode(symbols, counts)
        bits -= float(
            np.log2((counts[np.arange(len(symbols)), symbols].astype(np.float64) + 1) / 2**24).sum()
        )
    assert abs(encoder.size() - bits / 8) <= 12
    payload = encoder.finish()
    assert len(payload) % 4 == 0 and abs(len(payload) - bits / 8) <= 12
    decoder = Decoder(payload)
    for symbols, counts in steps:
        assert (decoder.decode(counts) == symbols).all()


def test_payload_is_pinned() -> None:
    """Archives are made of this: it may never change, on machines of either byte order."""
    counts = np.zeros((4, 256), np.float32)
    counts[:, 7] = COUNT_TOTAL - 1000
    counts[:, 200] = 1000
    encoder = Encoder()
    encoder.encode(np.array([7, 200, 0, 255], np.int32), counts)
    assert encoder.finish().hex() == "1400f7ffeaf0c83b"


def test_order_of_lanes_and_steps_is_one_stream() -> None:
    rng = np.random.default_rng(1)
    counts, symbols = draw_counts(rng, 30), rng.integers(0, 256, 30, dtype=np.int32)
    whole, parts = Encoder(), Encoder()
    whole.encode(symbols, counts)
    for start, stop in ((0, 1), (1, 20), (20, 30)):
        parts.encode(symbols[start:stop], counts[start:stop])
    assert whole.finish() == parts.finish()


@given(payload=st.binary(max_size=60), seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_any_payload_gives_symbols_or_corrupt_error(payload: bytes, seed: int) -> None:
    rng = np.random.default_rng(seed)
    try:
        decoder = Decoder(payload)
        for _ in range(6):
            symbols = decoder.decode(draw_counts(rng, 5))
            assert symbols.shape == (5,) and symbols.min() >= 0 and symbols.max() < 256
    except CorruptError:
        pass


def test_impossible_value_is_a_corrupt_error() -> None:
    """A decoder behind the end of what it was given reads zeros, then values no encoder writes."""
    rng = np.random.default_rng(3)
    refused = 0
    for word in range(40):
        decoder = Decoder(b"\xff" * 8 + bytes([word] * 4))
        try:
            for _ in range(20):
                decoder.decode(draw_counts(rng, 3))
        except CorruptError as error:
            assert "damaged" in str(error)
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 401])
def test_payload_of_odd_size_is_refused(size: int) -> None:
    with pytest.raises(CorruptError, match=f"{size} bytes"):
        Decoder(bytes(size))


def test_empty_stream() -> None:
    encoder = Encoder()
    assert encoder.size() == 0 and encoder.finish() == b""
