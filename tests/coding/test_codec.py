"""Blocks to payloads and back: the same bytes whatever computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhnzip.coding.codec import FrozenCodec, Lanes, looks_random
from rhnzip.coding.predictor import FrozenPredictor, lane_groups
from rhnzip.errors import CorruptError, LimitError
from rhnzip.exact.backend import get_backend

bytes_and_lanes = st.binary(min_size=1, max_size=3000).flatmap(
    lambda raw: st.tuples(st.just(raw), st.integers(1, len(raw)))
)
shared = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def frozen(network: Any, backend: str = "numba", threads: int = 1) -> FrozenCodec:
    return FrozenCodec(network.cell, network.weights, get_backend(backend), threads)


def prose(length: int, seed: int = 0) -> bytes:
    """Bytes of uneven frequency."""
    return np.random.default_rng(seed).choice(np.frombuffer(b"etaoin shrdlu\n", np.uint8), length).tobytes()


# Lanes.


@given(case=bytes_and_lanes)
def test_lanes_split_and_join(case: tuple[bytes, int]) -> None:
    raw, count = case
    lanes = Lanes(len(raw), count)
    table = lanes.split(raw)
    assert table.shape == (lanes.steps, count) and table.flags.c_contiguous
    assert lanes.join(table.astype(np.uint8)) == raw
    active = [lanes.active(step) for step in range(lanes.steps)]
    assert sum(active) == len(raw) and min(active) >= 1
    assert active[:-1] == [count] * (lanes.steps - 1)
    # Each lane is a piece of the text, read downwards; pieces follow one another.
    read = [table[step, lane] for lane in range(count) for step in range(lanes.steps) if lane < active[step]]
    assert bytes(read) == raw


@pytest.mark.parametrize(("length", "lanes"), [(0, 0), (0, 1), (1, 0), (5, 6), (5, -1)])
def test_impossible_lanes_are_refused(length: int, lanes: int) -> None:
    with pytest.raises(LimitError, match=f"{lanes} lanes for a block of {length} bytes"):
        Lanes(length, lanes)


@given(lanes=st.integers(1, 300), threads=st.integers(1, 9), smallest=st.integers(1, 20))
def test_lane_groups_cover_all_lanes(lanes: int, threads: int, smallest: int) -> None:
    parts = lane_groups(lanes, threads, smallest)
    assert [lane for part in parts for lane in range(part.start, part.stop)] == list(range(lanes))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) <= threads and max(sizes) - min(sizes) <= 1
    assert len(parts) == 1 or min(sizes) >= smallest


# Round trips.


@given(case=bytes_and_lanes)
@settings(shared, max_examples=25)
def test_round_trip(network: Any, case: tuple[bytes, int]) -> None:
    raw, lanes = case
    codec = frozen(network)
    payload = codec.encode(raw, lanes, 0)
    assert len(payload) % 4 == 0
    assert codec.decode(payload, len(raw), lanes, 0) == raw


@pytest.mark.parametrize("byte", [0, 255])
def test_constant_and_single_bytes(network: Any, byte: int) -> None:
    codec = frozen(network)
    for raw, lanes in ((bytes([byte]), 1), (bytes([byte]) * 100, 7), (bytes(range(256)), 256)):
        assert codec.decode(codec.encode(raw, lanes, 0), len(raw), lanes, 0) == raw


@pytest.mark.parametrize(("length", "lanes"), [(1, 1), (333, 1), (640, 40), (661, 33), (500, 256)])
def test_payload_does_not_depend_on_threads_or_backend(network: Any, length: int, lanes: int) -> None:
    raw = prose(length)
    codecs = [frozen(network), frozen(network, threads=2), frozen(network, "reference")]
    payloads = {codec.encode(raw, lanes, 0) for codec in codecs}
    assert len(payloads) == 1
    for codec in codecs:
        assert codec.decode(next(iter(payloads)), length, lanes, 0) == raw


def test_blocks_stand_alone(network: Any) -> None:
    codec = frozen(network)
    first = codec.encode(prose(300), 3, 0)
    codec.encode(prose(300, seed=1), 3, 0)
    assert codec.encode(prose(300), 3, 0) == first
    codec.reset()
    assert codec.decode(first, 300, 3, 0) == prose(300)


def test_segment_is_refused(network: Any) -> None:
    codec = frozen(network)
    with pytest.raises(CorruptError, match="segment of 5"):
        codec.decode(bytes(8), 10, 2, 5)
    with pytest.raises(CorruptError, match="segment of 5"):
        codec.encode(bytes(8), 2, 5)


def test_progress_counts_raw_and_coded_bytes(network: Any) -> None:
    codec, raw = frozen(network), prose(100)
    encoding: list[tuple[int, int]] = []
    decoding: list[tuple[int, int]] = []
    payload = codec.encode(raw, 7, 0, lambda *done: encoding.append(done))
    codec.decode(payload, 100, 7, 0, lambda *done: decoding.append(done))
    for seen in (encoding, decoding):
        assert [done for done, _ in seen] == [*range(7, 100, 7), 100]
        coded = [done for _, done in seen]
        assert coded == sorted(coded) and len(payload) - 8 <= coded[-1] <= len(payload)


@pytest.mark.parametrize("threads", [1, 2])
def test_error_in_progress_stops_the_block_and_leaves_threads_as_they_were(
    network: Any, threads: int
) -> None:
    class Stop(Exception):
        pass

    def stop(_raw: int, _packed: int) -> None:
        raise Stop

    before = torch.get_num_threads()
    with pytest.raises(Stop):
        frozen(network, threads=threads).encode(prose(100), 40, 0, stop)
    assert torch.get_num_threads() == before


# What the decoder relies on.


def counts_by_step(network: Any, table: np.ndarray[Any, Any], groups: int = 1) -> list[np.ndarray[Any, Any]]:
    """Counts before each step, the table's bytes, shape (T, B), being told after it."""

    def run(tasks: Any) -> None:
        for task in tasks:
            task()

    parts = lane_groups(table.shape[1], groups, 1)
    predictor = FrozenPredictor(network.cell, get_backend().prepare(network.weights), parts, run)
    seen = []
    for row in table:
        seen.append(predictor.counts().copy())
        predictor.update(row)
    return seen


@pytest.mark.parametrize("change", [0, 1, 3, 4, 7, 11])
def test_counts_depend_on_earlier_bytes_alone(network: Any, change: int) -> None:
    rng = np.random.default_rng(change)
    table = rng.integers(0, 256, (12, 5), dtype=np.int32)
    other = table.copy()
    other[change:] = rng.integers(0, 256, (12 - change, 5))
    counts, changed = counts_by_step(network, table), counts_by_step(network, other)
    for step in range(change + 1):
        assert (counts[step] == changed[step]).all()
    for step in range(change + 1, 12):
        assert (counts[step] != changed[step]).any()


def test_counts_do_not_depend_on_groups_of_lanes(network: Any) -> None:
    table = np.random.default_rng(0).integers(0, 256, (10, 6), dtype=np.int32)
    for one, many in zip(counts_by_step(network, table), counts_by_step(network, table, 4), strict=True):
        assert (one == many).all()


def test_lanes_do_not_see_each_other(network: Any) -> None:
    table = np.random.default_rng(0).integers(0, 256, (8, 6), dtype=np.int32)
    together, apart = counts_by_step(network, table), counts_by_step(network, table[:, 2:4])
    for a, b in zip(together, apart, strict=True):
        assert (a[2:4] == b).all()
    assert (together[-1][:2] != apart[-1]).any()  # at the first step all lanes are alike


def test_lane_that_ended_leaves_the_others_alone(network: Any) -> None:
    table = np.random.default_rng(0).integers(0, 256, (3, 4), dtype=np.int32)
    predictor = FrozenPredictor(
        network.cell, get_backend().prepare(network.weights), [slice(0, 4)], lambda tasks: tasks[0]()
    )
    for row in table:
        predictor.counts()
        predictor.update(row[:2])
    counts = predictor.counts().copy()
    expected = counts_by_step(network, np.concatenate([table, table[:1]]))[-1]
    assert (counts[:2] == expected[:2]).all()


@pytest.mark.parametrize(("length", "lanes"), [(1, 1), (40, 3), (3000, 1), (3000, 17), (20_000, 200)])
@pytest.mark.parametrize("kind", ["prose", "noise", "zeros"])
def test_payload_costs_what_the_counts_say(network: Any, length: int, lanes: int, kind: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, length, dtype=np.uint8).tobytes()
    raw = {"prose": prose(length), "noise": noise, "zeros": bytes(length)}[kind]
    layout = Lanes(length, lanes)
    table = layout.split(raw)
    bits = 0.0
    for step, counts in enumerate(counts_by_step(network, table)):
        active = layout.active(step)
        chosen = counts[np.arange(active), table[step, :active]].astype(np.float64)
        bits -= float(np.log2((chosen + 1) / 2**24).sum())
    size = len(frozen(network).encode(raw, lanes, 0))
    assert bits / 8 <= size <= bits / 8 * 1.001 + 16


# Damaged payloads.


@given(payload=st.binary(max_size=400), length=st.integers(1, 300), data=st.data())
@settings(shared, max_examples=60)
def test_any_payload_decodes_to_something_or_is_refused(
    network: Any, payload: bytes, length: int, data: st.DataObject
) -> None:
    lanes = data.draw(st.integers(1, length))
    try:
        raw = frozen(network).decode(payload, length, lanes, 0)
    except CorruptError:
        return
    assert len(raw) == length and len(payload) % 4 == 0


def test_damage_is_survived(network: Any) -> None:
    codec, raw = frozen(network), prose(600)
    payload = codec.encode(raw, 6, 0)
    rng = np.random.default_rng(2)
    damaged = [payload[:-4], payload[:40], b"", bytes(len(payload)), b"\xff" * len(payload)]
    for at in rng.integers(0, len(payload) - 8, 12).tolist():
        damaged.append(payload[:at] + bytes([payload[at] ^ 1 << int(rng.integers(8))]) + payload[at + 1 :])
    for wrong in damaged:
        try:
            assert codec.decode(wrong, len(raw), 6, 0) != raw
        except CorruptError:
            continue


# Bytes not worth coding.


@given(seed=st.integers(0, 2**32), size=st.integers(4096, 200_000), symbols=st.integers(240, 256))
@settings(max_examples=50, deadline=None)
def test_looks_random_is_pearsons_test(seed: int, size: int, symbols: int) -> None:
    raw = np.random.default_rng(seed).integers(0, symbols, size, dtype=np.uint8).tobytes()
    counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
    statistic = float(((counts - size / 256) ** 2).sum() / (size / 256))
    limit = 400 + size / 72
    assert abs(statistic - limit) < 1e-6 * limit or looks_random(raw) == (statistic < limit)


def test_short_blocks_never_look_random() -> None:
    noise = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8).tobytes()
    assert looks_random(noise) and not looks_random(noise[:-1])
