"""Whole archives, coded by a small network of the test's own, learning and not."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rhnzip
from rhnzip.adaptation import PARAMETER_IDS
from rhnzip.archive import FLAG_LEARNING, ArchiveReader, FrameHeader
from rhnzip.errors import CorruptError, FormatError, RhnzipError, UnknownModelError
from rhnzip.models.modelfile import Model, save_model
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig
from rhnzip.streams import BlockInfo, inspect_stream

TEXT = b"Around the rugged rocks the ragged rascal ran; ragged rocks, rugged rascals, round and round. " * 4
LEARNING = ["default", "best"]


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def write_model(path: Path, seed: int) -> str:
    """An untrained network that knows how often each byte of TEXT occurs."""
    cell = RHN(RHNConfig(units=8, depth=2, embedding=4))
    parameters = cell.initial(torch.Generator().manual_seed(seed))
    sample = np.frombuffer(TEXT, np.uint8)
    parameters["output_bias"] = torch.from_numpy(np.log(np.bincount(sample, minlength=256) + 0.01)).float()
    save_model(Model("toy", cell, exact_weights(cell, parameters, sample)), path)
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "toy.safetensors", 1)


@pytest.fixture(scope="module")
def archive(model: str) -> bytes:
    """Three blocks; the last is short."""
    return rhnzip.compress(TEXT[:300], model=model, preset="default", block_size=128, threads=1)


def blocks_of(packed: bytes) -> tuple[BlockInfo, ...]:
    (frame,) = inspect_stream(io.BytesIO(packed))
    return frame.blocks


@pytest.mark.parametrize("preset", ["fast", *LEARNING])
@pytest.mark.parametrize("raw", [b"", b"a", TEXT[:40], TEXT], ids=["empty", "byte", "line", "text"])
def test_round_trip(preset: str, raw: bytes, model: str) -> None:
    packed = rhnzip.compress(raw, model=model, preset=preset)
    assert rhnzip.decompress(packed, model=model) == raw
    (frame,) = inspect_stream(io.BytesIO(packed))
    assert (frame.preset, frame.learning, frame.model_name) == (preset, preset != "fast", "toy")
    assert set(frame.parameters) == ({1, 2, 3, 4, 5, 6, 9} if frame.learning else set())


@pytest.mark.parametrize("preset", LEARNING)
def test_learning_carries_over_blocks(preset: str, model: str) -> None:
    packed = rhnzip.compress(TEXT, model=model, preset=preset, block_size=100)
    blocks = blocks_of(packed)
    assert len(blocks) == -(-len(TEXT) // 100)
    assert [block.kind for block in blocks] == ["coded"] * len(blocks)
    assert [block.reset for block in blocks] == [True] + [False] * (len(blocks) - 1)
    assert all(block.segment > 0 for block in blocks)
    assert rhnzip.decompress(packed, model=model) == TEXT


def test_frozen_blocks_are_independent(model: str) -> None:
    packed = rhnzip.compress(TEXT, model=model, preset="fast", block_size=100)
    assert all(block.reset and block.segment == 0 for block in blocks_of(packed) if block.kind == "coded")
    assert rhnzip.decompress(packed, model=model) == TEXT


@pytest.mark.parametrize("preset", LEARNING)
def test_block_that_does_not_shrink_is_stored_and_forgotten(preset: str, model: str) -> None:
    """The encoder has learned from it, the decoder cannot: the next coded block starts anew."""
    raw = TEXT[:200] + noise(100) + TEXT[200:]
    packed = rhnzip.compress(raw, model=model, preset=preset, block_size=100)
    kinds = [(block.kind, block.reset) for block in blocks_of(packed)]
    assert kinds[:5] == [("coded", True), ("coded", False), ("raw", False), ("coded", True), ("coded", False)]
    assert rhnzip.decompress(packed, model=model) == raw


@pytest.mark.parametrize("preset", LEARNING)
def test_noise_that_was_not_tried_leaves_what_was_learned(preset: str, model: str) -> None:
    size = 4096
    raw = (TEXT * 20)[:size] + noise(size) + TEXT
    packed = rhnzip.compress(raw, model=model, preset=preset, block_size=size, lanes=32)
    kinds = [(block.kind, block.reset) for block in blocks_of(packed)]
    assert kinds == [("coded", True), ("raw", False), ("coded", False)]
    assert rhnzip.decompress(packed, model=model) == raw


@pytest.mark.parametrize("raw", [noise(50), noise(4096), bytes(range(256))], ids=["short", "long", "once"])
@pytest.mark.parametrize("preset", LEARNING)
def test_noise_alone(preset: str, raw: bytes, model: str) -> None:
    packed = rhnzip.compress(raw, model=model, preset=preset, lanes=16)
    assert [block.kind for block in blocks_of(packed)] == ["raw"]
    assert rhnzip.decompress(packed, model=model) == raw


def test_archives_may_be_joined(model: str) -> None:
    presets = ("default", "fast", "best", "default")
    parts = [rhnzip.compress(TEXT, model=model, preset=preset) for preset in presets]
    assert parts[0] == parts[3]
    assert rhnzip.decompress(b"".join(parts), model=model) == TEXT * 4


@pytest.mark.parametrize("preset", ["fast", *LEARNING])
def test_archive_depends_on_no_backend_and_no_threads(preset: str, model: str) -> None:
    raw = TEXT[:250]

    def packed_by(backend: str, threads: int) -> bytes:
        return rhnzip.compress(
            raw, model=model, preset=preset, lanes=9, block_size=200, backend=backend, threads=threads
        )

    packed = [packed_by(*engine) for engine in (("numba", 1), ("numba", 2), ("reference", 1))]
    assert packed[0] == packed[1] == packed[2]
    for backend, threads in (("numba", 3), ("reference", 2)):
        assert rhnzip.decompress(packed[0], model=model, backend=backend, threads=threads) == raw


def test_every_cut_is_an_error(archive: bytes, model: str) -> None:
    for cut in [*range(1, 60, 7), *range(60, len(archive), 23), len(archive) - 1]:
        with pytest.raises(RhnzipError):
            rhnzip.decompress(archive[:cut], model=model)


def test_a_cut_tells_what_was_recovered(archive: bytes, model: str) -> None:
    last = blocks_of(archive)[-1]
    with pytest.raises(CorruptError) as caught:
        rhnzip.decompress(archive[: last.offset + 20], model=model)
    assert caught.value.recovered == 256


def test_every_changed_byte_is_an_error(archive: bytes, model: str) -> None:
    for position in [*range(0, 60, 5), *range(60, len(archive), 17), len(archive) - 1]:
        changed = bytearray(archive)
        changed[position] ^= 1 << position % 8
        with pytest.raises(RhnzipError):
            rhnzip.decompress(bytes(changed), model=model)


def reheaded(archive: bytes, **changes: object) -> bytes:
    """The archive under a forged frame header with a valid checksum."""
    parts = iter(ArchiveReader(io.BytesIO(archive)))
    header, _ = next(parts)
    assert isinstance(header, FrameHeader)
    return replace(header, **changes).pack() + archive[len(header.pack()) :]  # type: ignore[arg-type]


def parameters_of(archive: bytes) -> dict[int, int]:
    (frame,) = inspect_stream(io.BytesIO(archive))
    return dict(frame.parameters)


@pytest.mark.parametrize("number", PARAMETER_IDS)
def test_missing_setting(number: int, archive: bytes, model: str) -> None:
    parameters = parameters_of(archive) | {7: 0x40000000, 8: 0x3F000000}  # two lanes that count half
    del parameters[number]
    with pytest.raises(FormatError, match=PARAMETER_IDS[number]):
        rhnzip.decompress(reheaded(archive, parameters=parameters), model=model)


def test_unknown_setting(archive: bytes, model: str) -> None:
    with pytest.raises(FormatError, match="parameter 99"):
        rhnzip.decompress(reheaded(archive, parameters=parameters_of(archive) | {99: 1}), model=model)


@pytest.mark.parametrize("value", [float("nan"), 2.0, -1.0, 1e-40])
def test_setting_out_of_range(value: float, archive: bytes, model: str) -> None:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    with pytest.raises(FormatError, match="rate"):
        rhnzip.decompress(reheaded(archive, parameters=parameters_of(archive) | {1: bits}), model=model)


def test_other_setting_is_noticed(archive: bytes, model: str) -> None:
    """Another rate learns something else: the blocks' checksums tell."""
    (bits,) = struct.unpack("<I", struct.pack("<f", 0.5))
    with pytest.raises(CorruptError):
        rhnzip.decompress(reheaded(archive, parameters=parameters_of(archive) | {1: bits}), model=model)


def test_settings_without_learning(model: str) -> None:
    packed = rhnzip.compress(TEXT, model=model, preset="fast")
    parameters = parameters_of(rhnzip.compress(TEXT, model=model, preset="default"))
    with pytest.raises(FormatError, match="does not learn"):
        rhnzip.decompress(reheaded(packed, parameters=parameters), model=model)
    with pytest.raises(FormatError, match="segment"):
        rhnzip.decompress(reheaded(packed, flags=FLAG_LEARNING, parameters=parameters), model=model)


def test_other_model(archive: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError):
        rhnzip.decompress(archive, model=write_model(tmp_path / "other.safetensors", 2))
