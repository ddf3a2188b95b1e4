from __future__ import annotations

import io
import tracemalloc

import pytest
from xxhash import xxh64_intdigest

from rhnzip.archive import (
    FLAG_EXPERTS,
    FLAG_LEARNING,
    ArchiveReader,
    CodedBlock,
    EndMarker,
    ExtensionBlock,
    FrameHeader,
    RawBlock,
    limits,
    read_up_to,
)
from rhnzip.archive.fields import pack_varint, seal
from rhnzip.errors import CorruptError, FormatError

RAW = b"some text"
PAYLOAD = b"coded"


class Trickle(io.RawIOBase):
    """A source that gives one byte at a time, and counts what it is asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)
        self.largest = 0

    def read(self, size: int = -1) -> bytes:
        self.largest = max(self.largest, size)
        return self.data.read(min(size, 1))


def header(**fields: object) -> FrameHeader:
    return FrameHeader(**{"model_id": b"model id", "model_name": "toy", **fields})


def coded(*, reset: bool = True, segment: int = 0) -> bytes:
    return CodedBlock.of(RAW, PAYLOAD, lanes=3, segment=segment, reset=reset).pack() + PAYLOAD


def frame(*blocks: bytes, count: int, flags: int = 0, parameters: dict[int, int] | None = None) -> bytes:
    """Return a frame of blocks of which `count` hold RAW."""
    start = header(flags=flags, parameters=parameters or {}).pack()
    raw = RAW * count
    return start + b"".join(blocks) + EndMarker(len(raw), xxh64_intdigest(raw)).pack()


STORED = RawBlock.of(RAW).pack() + RAW
EXTENSION = ExtensionBlock.of(77, b"whatever").pack() + b"whatever"
ARCHIVE = frame(coded(), EXTENSION, STORED, coded(), count=3) + frame(count=0) + frame(EXTENSION, count=0)


def kinds(data: bytes, **options: object) -> list[str]:
    return [type(part).__name__ for part, _ in ArchiveReader(io.BytesIO(data), **options)]


def test_parts_come_in_order() -> None:
    reader = ArchiveReader(io.BytesIO(ARCHIVE))
    parts = list(reader)
    assert [type(part).__name__ for part, _ in parts] == [
        *("FrameHeader", "CodedBlock", "ExtensionBlock", "RawBlock", "CodedBlock", "EndMarker"),
        *("FrameHeader", "EndMarker"),
        *("FrameHeader", "ExtensionBlock", "EndMarker"),
    ]
    payloads = [payload for _, payload in parts if payload]
    assert payloads == [PAYLOAD, b"whatever", RAW, PAYLOAD, b"whatever"]
    assert reader.position == len(ARCHIVE)


def test_short_reads_make_no_difference() -> None:
    assert list(ArchiveReader(Trickle(ARCHIVE))) == list(ArchiveReader(io.BytesIO(ARCHIVE)))


def test_read_up_to_ends_with_the_file() -> None:
    assert read_up_to(Trickle(b"abcdef"), 4) == b"abcd"
    assert read_up_to(Trickle(b"abc"), 4) == b"abc"
    assert read_up_to(Trickle(b""), 4) == b""


def test_non_blocking_source_is_an_error() -> None:
    class Nothing(io.RawIOBase):
        def read(self, _size: int = -1) -> None:
            return None

    with pytest.raises(BlockingIOError):
        read_up_to(Nothing(), 4)


def test_every_truncation_is_an_error_but_between_frames() -> None:
    ends = {len(frame(coded(), EXTENSION, STORED, coded(), count=3))}
    ends.add(max(ends) + len(frame(count=0)))
    for size in range(len(ARCHIVE)):
        if size in ends:
            kinds(ARCHIVE[:size])
        else:
            with pytest.raises((FormatError, CorruptError)):
                kinds(ARCHIVE[:size])


def test_every_change_of_a_byte_is_an_error() -> None:
    for position in range(len(ARCHIVE)):
        for change in (0x01, 0x10, 0x80, 0xFF):
            damaged = bytearray(ARCHIVE)
            damaged[position] ^= change
            with pytest.raises((FormatError, CorruptError)):
                kinds(bytes(damaged))


@pytest.mark.parametrize("data", [b"", b"\x8f", b"\x8fRH", b"hello world", b"\0" * 100])
def test_what_is_no_archive_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="not a .rhn archive"):
        kinds(data)


@pytest.mark.parametrize("garbage", [b"\0", b"\n", b"\x8fRH", b"hello world"])
def test_trailing_garbage_is_an_error(garbage: bytes) -> None:
    with pytest.raises(CorruptError, match="follow its end"):
        kinds(ARCHIVE + garbage)


def test_missing_end_is_an_error() -> None:
    with pytest.raises(CorruptError, match="cut short"):
        kinds(header().pack() + coded())


def test_end_counts_the_bytes() -> None:
    with pytest.raises(CorruptError, match="its end says"):
        kinds(frame(coded(), STORED, count=1))


def test_unsupported_flags_are_refused_by_name() -> None:
    learning = frame(coded(segment=1), count=1, flags=FLAG_LEARNING)
    both = frame(coded(segment=1), count=1, flags=FLAG_LEARNING | FLAG_EXPERTS)
    assert kinds(learning, supported_flags=FLAG_LEARNING) == ["FrameHeader", "CodedBlock", "EndMarker"]
    assert kinds(both) == ["FrameHeader", "CodedBlock", "EndMarker"]
    with pytest.raises(FormatError, match="learning and experts"):
        kinds(both, supported_flags=0)
    with pytest.raises(FormatError, match="uses experts"):
        kinds(both, supported_flags=FLAG_LEARNING)


def test_unknown_parameters_are_refused() -> None:
    archive = frame(count=0, parameters={3: 1, 5: 2})
    assert kinds(archive, known_parameters={3, 4, 5}) == ["FrameHeader", "EndMarker"]
    with pytest.raises(FormatError, match="parameter 5"):
        kinds(archive, known_parameters={3, 4})


def test_frozen_blocks_stand_alone() -> None:
    for blocks in ([coded(reset=False)], [coded(), coded(reset=False)], [STORED, coded(reset=False)]):
        with pytest.raises(FormatError, match="reset"):
            kinds(frame(*blocks, count=len(blocks)))


def test_learning_blocks_build_on_a_first() -> None:
    later, first = coded(reset=False, segment=2), coded(segment=2)
    assert len(kinds(frame(STORED, first, STORED, later, count=4, flags=FLAG_LEARNING))) == 6
    for blocks in ([later], [STORED, later]):
        with pytest.raises(FormatError, match="reset"):
            kinds(frame(*blocks, count=len(blocks), flags=FLAG_LEARNING))
    with pytest.raises(FormatError, match="reset"):  # each frame has its own first block
        kinds(frame(first, count=1, flags=FLAG_LEARNING) + frame(later, count=1, flags=FLAG_LEARNING))


@pytest.mark.parametrize(("segment", "flags"), [(1, 0), (0, FLAG_LEARNING)])
def test_segment_goes_with_the_learning_flag(segment: int, flags: int) -> None:
    with pytest.raises(FormatError, match="segment"):
        kinds(frame(coded(segment=segment), count=1, flags=flags))


def forged_lengths() -> list[bytes]:
    most = limits.MAX_BLOCK
    lengths = pack_varint(most) + pack_varint(limits.max_payload(most)) + b"\1\0"
    return [
        seal(b"\x11" + lengths + bytes(12)),
        seal(b"\x02" + pack_varint(most) + bytes(8)),
        seal(b"\x0f\x01" + pack_varint(limits.MAX_EXTENSION) + bytes(4)),
    ]


@pytest.mark.parametrize("block", forged_lengths(), ids=["coded", "raw", "extension"])
def test_forged_lengths_allocate_nothing(block: bytes) -> None:
    archive = header().pack() + block + b"a few bytes"
    source = Trickle(archive)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match="cut short"):
            list(ArchiveReader(source))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert source.largest <= 1 << 20
