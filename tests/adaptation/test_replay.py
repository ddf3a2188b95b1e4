"""Lanes that read again what was coded: what they may know, and that they help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rhnzip.adaptation import from_parameters, to_parameters
from rhnzip.adaptation import replay as module
from rhnzip.adaptation.replay import SPAN, Replay
from rhnzip.coding.codec import LearningCodec
from rhnzip.exact.backend import Settings
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig

CELL = RHN(RHNConfig(units=8, depth=2, embedding=4))
SAMPLE = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 20, np.uint8)
WEIGHTS = exact_weights(CELL, CELL.initial(torch.Generator().manual_seed(7)), SAMPLE)
ALONE = Settings(rate=3e-3, boost=4.0, boost_updates=20.0, beta=0.98, decay=1e-4, floor=1e-3)
REPLAYING = from_parameters(to_parameters(replace(ALONE, replay=3, replay_share=0.2)))
BACKENDS: list[Any] = [CpuBackend(), ReferenceBackend()]


def codec(chosen: Settings = REPLAYING, backend: Any = BACKENDS[0], threads: int = 1) -> LearningCodec:
    return LearningCodec(CELL, WEIGHTS, backend, chosen, threads)


@given(
    blocks=st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.integers(1, 9)), min_size=1, max_size=3),
    segment=st.integers(1, 9),
    backends=st.permutations([0, 1]),
    threads=st.integers(1, 2),
)
@settings(max_examples=30, deadline=None)
def test_round_trip_across_backends(
    blocks: list[tuple[bytes, int]], segment: int, backends: list[int], threads: int
) -> None:
    encoder, decoder = (
        codec(backend=BACKENDS[backends[0]]),
        codec(backend=BACKENDS[backends[1]], threads=threads),
    )
    for raw, lanes in blocks:
        lanes = min(lanes, len(raw))
        payload = encoder.encode(raw, lanes, segment)
        assert decoder.decode(payload, len(raw), lanes, segment) == raw


@given(
    history=st.binary(max_size=40),
    text=st.binary(min_size=1, max_size=120),
    lanes=st.integers(1, 4),
    steps=st.integers(1, 7),
)
def test_only_what_is_known_is_read(history: bytes, text: bytes, lanes: int, steps: int) -> None:
    replay, known = Replay(lanes, 0.5, steps, history), history
    for number in range(len(text) // steps):
        replay.begin(number + 1)
        segment = np.stack([replay.symbols(step) for step in range(steps + 1)], axis=1)
        for lane, share in enumerate(replay.shares):
            assert share in (0, 0.5)
            if share:
                assert bytes(segment[lane].astype(np.uint8)) in known
            else:
                assert len(known) <= steps and not segment[lane].any()
        for byte in text[number * steps : (number + 1) * steps]:
            replay.add(byte)
            known += bytes([byte])


def test_stretches_are_read_in_order_and_differ() -> None:
    text = bytes(np.random.default_rng(1).integers(0, 256, 10 * SPAN, np.uint8))
    replay, read = Replay(2, 0.5, 32, text), ([], [])
    for number in range(2 * SPAN // 32):
        replay.begin(number + 1)
        for step in range(32):
            for lane, byte in enumerate(replay.symbols(step)):
                read[lane].append(int(byte))
    for stretch in (slice(0, SPAN - 32), slice(SPAN, 2 * SPAN - 64)):
        assert all(bytes(lane[stretch]) in text for lane in read)
        assert read[0][stretch] != read[1][stretch]


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY", 50)
    replay = Replay(1, 0.5, 4, bytes(range(100)))
    replay.begin(1)
    assert replay.symbols(0)[0] >= 50


def test_history_is_what_was_coded_since_the_reset() -> None:
    """A second block replays the first: its payload depends on what the first one was, reset or not."""
    raw, other = bytes(SAMPLE[:200]), bytes(SAMPLE[:200][::-1])
    fresh = codec().encode(other, 1, 5)
    used = codec()
    used.encode(raw, 1, 5)
    assert used.encode(other, 1, 5) != fresh
    used.reset()
    assert used.encode(other, 1, 5) == fresh


def test_replay_helps_a_network_that_knows_little() -> None:
    rng = np.random.default_rng(5)
    words = [bytes(rng.integers(97, 123, rng.integers(3, 9), np.uint8)) for _ in range(30)]
    raw = b" ".join(words[i] for i in rng.integers(0, 30, 600))
    assert len(codec().encode(raw, 1, 10)) < 0.98 * len(codec(ALONE).encode(raw, 1, 10))
