"""Blocks coded by a network that learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rhnzip.coding.codec import FrozenCodec, LearningCodec
from rhnzip.errors import CorruptError, LimitError, RhnzipError
from rhnzip.exact.backend import Settings
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig

CELL = RHN(RHNConfig(units=8, depth=2, embedding=4))
SAMPLE = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 20, np.uint8)
WEIGHTS = exact_weights(CELL, CELL.initial(torch.Generator().manual_seed(7)), SAMPLE)
SETTINGS = Settings(rate=3e-3, boost=4.0, boost_updates=20.0, beta=0.98, decay=1e-4, floor=1e-3)
BACKENDS: list[Any] = [CpuBackend(), ReferenceBackend()]
TEXT = b"She sells sea shells by the sea shore; the shells she sells are sea shells, I'm sure. "


def codec(backend: Any = BACKENDS[0], threads: int | None = 1) -> LearningCodec:
    return LearningCodec(CELL, WEIGHTS, backend, SETTINGS, threads)


@given(
    blocks=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 9)), min_size=1, max_size=3),
    segment=st.integers(1, 9),
    backend=st.sampled_from(BACKENDS),
)
@settings(max_examples=30, deadline=None)
def test_round_trip(blocks: list[tuple[bytes, int]], segment: int, backend: Any) -> None:
    encoder, decoder = codec(backend), codec(backend)
    for raw, lanes in blocks:
        lanes = min(lanes, len(raw))
        payload = encoder.encode(raw, lanes, segment)
        assert decoder.decode(payload, len(raw), lanes, segment) == raw


@pytest.mark.parametrize(("one", "two"), [((0, 2), (1, 1)), ((1, 1), (0, 2)), ((0, 1), (0, 3))])
def test_backend_and_threads_change_nothing(one: tuple[int, int], two: tuple[int, int]) -> None:
    """Twelve lanes, so that two and three threads get a group each."""
    encoder, decoder, other = (codec(BACKENDS[b], threads) for b, threads in (one, two, two))
    for raw in (TEXT * 2, TEXT[:77], TEXT[5:]):
        payload = encoder.encode(raw, 12, 3)
        assert decoder.decode(payload, len(raw), 12, 3) == raw
        assert other.encode(raw, 12, 3) == payload


def test_learning_beats_frozen() -> None:
    raw = TEXT * 12
    frozen = FrozenCodec(CELL, WEIGHTS, BACKENDS[0], 1).encode(raw, 2, 0)
    learned = codec().encode(raw, 2, 4)
    assert len(learned) < 0.75 * len(frozen)


def test_what_was_learned_carries_over_blocks() -> None:
    encoder = codec()
    sizes = [len(encoder.encode(TEXT * 4, 2, 4)) for _ in range(3)]
    assert sizes[2] < sizes[1] < sizes[0]
    encoder.reset()
    assert len(encoder.encode(TEXT * 4, 2, 4)) == sizes[0]


def test_a_block_needs_those_before_it() -> None:
    encoder, decoder = codec(), codec()
    encoder.encode(TEXT, 2, 4)
    payload = encoder.encode(TEXT, 2, 4)
    try:
        raw = decoder.decode(payload, len(TEXT), 2, 4)
    except CorruptError:
        raw = b""
    assert raw != TEXT


def test_reset_forgets() -> None:
    used, fresh = codec(), codec()
    used.encode(TEXT * 2, 3, 2)
    used.reset()
    for raw in (TEXT, TEXT[::-1]):
        assert used.encode(raw, 3, 2) == fresh.encode(raw, 3, 2)


@pytest.mark.parametrize("other", [(3, 4), (2, 5)])
def test_lanes_and_segment_matter(other: tuple[int, int]) -> None:
    payload = codec().encode(TEXT, 2, 4)
    try:
        raw = codec().decode(payload, len(TEXT), *other)
    except CorruptError:
        raw = b""
    assert raw != TEXT


@given(payload=st.binary(max_size=60), length=st.integers(1, 30), lanes=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_nonsense_gives_bytes_or_an_error(payload: bytes, length: int, lanes: int) -> None:
    try:
        raw = codec().decode(payload, length, min(lanes, length), 2)
    except RhnzipError:
        return
    assert len(raw) == length


def test_progress_is_told() -> None:
    done: list[int] = []
    codec().encode(TEXT, 4, 3, lambda raw, _packed: done.append(raw))
    assert done == sorted(done) and done[-1] == len(TEXT) and len(done) == -(-len(TEXT) // 4)


def test_segment_and_learning_belong_together() -> None:
    with pytest.raises(CorruptError, match="segment"):
        codec().decode(b"\0" * 8, 5, 1, 0)
    with pytest.raises(CorruptError, match="segment"):
        FrozenCodec(CELL, WEIGHTS, BACKENDS[0], 1).decode(b"\0" * 8, 5, 1, 3)


def test_memory_is_counted_before_it_is_taken() -> None:
    with pytest.raises(LimitError, match="GiB"):
        codec().decode(b"\0" * 8, 1 << 24, 4096, 1 << 17)
