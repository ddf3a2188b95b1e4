from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from rhnzip.archive import (
    ALL_FLAGS,
    FLAG_LEARNING,
    FORMAT_VERSION,
    MAGIC,
    PRESET_NAMES,
    ArchiveReader,
    Block,
    CodedBlock,
    EndMarker,
    ExtensionBlock,
    FrameHeader,
    RawBlock,
    limits,
)
from rhnzip.archive.fields import FieldReader, pack_varint, seal
from rhnzip.archive.format import read_block
from rhnzip.errors import CorruptError, FormatError, LimitError

SPECIFICATION = Path(__file__).parents[2] / "docs" / "format.md"

HEADER = FrameHeader(bytes(range(1, 9)), "toy")
CODED = CodedBlock.of(b"ab" * 100, bytes.fromhex("deadbeef"), lanes=2, segment=0, reset=True)


def parse_header(packed: bytes) -> FrameHeader:
    assert packed.startswith(MAGIC)
    source = io.BytesIO(packed[len(MAGIC) :])
    header = FrameHeader.read(FieldReader(source.read, MAGIC))
    assert not source.read()
    return header


def parse_block(packed: bytes) -> Block:
    source = io.BytesIO(packed)
    block = read_block(FieldReader(source.read))
    assert not source.read()
    return block


def resealed(packed: bytes, change: Callable[[bytearray], object]) -> bytes:
    """Return a header changed by a forger, who fits the checksum too."""
    header = bytearray(packed[:-4])
    change(header)
    return seal(bytes(header))


def set_byte(position: int, value: int) -> Callable[[bytearray], object]:
    return lambda header: header.__setitem__(position, value)


# --- round trips -----------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=63)
u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)
byte = st.integers(0, 255)
headers = st.builds(
    FrameHeader,
    model_id=st.binary(min_size=8, max_size=8),
    model_name=names,
    arithmetic_version=byte,
    flags=st.integers(0, ALL_FLAGS),
    preset=byte,
    parameters=st.dictionaries(byte, u32, max_size=204),
)
raw_lengths = st.integers(1, limits.MAX_BLOCK)


@st.composite
def coded_blocks(draw: st.DrawFn) -> CodedBlock:
    raw_length = draw(raw_lengths)
    lanes = draw(st.integers(1, min(raw_length, limits.MAX_LANES)))
    return CodedBlock(
        raw_length=raw_length,
        payload_length=draw(st.integers(1, limits.max_payload(raw_length))),
        lanes=lanes,
        segment=draw(st.integers(0, limits.MAX_ROWS // lanes)),
        raw_hash=draw(u64),
        payload_crc=draw(u32),
        reset=draw(st.booleans()),
    )


blocks = st.one_of(
    coded_blocks(),
    st.builds(RawBlock, raw_lengths, u64),
    st.builds(ExtensionBlock, u64, st.integers(0, limits.MAX_EXTENSION), u32),
    st.builds(EndMarker, u64, u64),
)


@settings(deadline=None)
@given(headers)
def test_header_round_trip(header: FrameHeader) -> None:
    assert parse_header(header.pack()) == header


@settings(deadline=None)
@given(blocks)
def test_block_round_trip(block: Block) -> None:
    assert parse_block(block.pack()) == block


@settings(deadline=None)
@given(headers, st.data())
def test_damaged_header_is_refused(header: FrameHeader, data: st.DataObject) -> None:
    packed = bytearray(header.pack() + bytes(2000))  # damage may make it longer
    position = data.draw(st.integers(len(MAGIC), len(header.pack()) - 1))
    packed[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((FormatError, CorruptError)):
        FrameHeader.read(FieldReader(io.BytesIO(packed[len(MAGIC) :]).read, MAGIC))


@settings(deadline=None)
@given(blocks, st.data())
def test_damaged_block_header_is_refused(block: Block, data: st.DataObject) -> None:
    packed = bytearray(block.pack() + bytes(100))
    packed[data.draw(st.integers(0, len(block.pack()) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises((FormatError, CorruptError)):
        read_block(FieldReader(io.BytesIO(packed).read))


# --- frame headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model_id": bytes(7)}, LimitError),
        ({"model_name": ""}, LimitError),
        ({"model_name": "é" * 128}, LimitError),
        ({"model_name": "a\x1b[2Jb"}, FormatError),
        ({"model_name": "a\x9bb"}, FormatError),
        ({"model_name": "a\u202eb"}, FormatError),
        ({"model_name": "a\ud800b"}, FormatError),
        ({"flags": 4}, FormatError),
        ({"preset": 256}, LimitError),
        ({"arithmetic_version": -1}, LimitError),
        ({"parameters": {256: 0}}, LimitError),
        ({"parameters": {0: 1 << 32}}, LimitError),
        ({"parameters": dict.fromkeys(range(205), 0)}, LimitError),
    ],
)
def test_header_fields_are_checked(fields: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataclasses.replace(HEADER, **fields)


@pytest.mark.parametrize("flag", range(2, 8))
def test_reserved_flags_are_refused(flag: int) -> None:
    with pytest.raises(FormatError, match="flags"):
        parse_header(resealed(HEADER.pack(), set_byte(6, 1 << flag)))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_format_versions_are_refused(version: int) -> None:
    with pytest.raises(FormatError, match=f"format version {version}"):
        parse_header(resealed(HEADER.pack(), set_byte(4, version)))


def test_forged_names_are_refused() -> None:
    packed = HEADER.pack()
    assert packed[-7:-4] == b"toy"
    for name in (b"\xff\xff\xff", b"a\nb"):
        with pytest.raises(FormatError, match="name"):
            parse_header(
                resealed(packed, lambda header, name=name: header.__setitem__(slice(-3, None), name))
            )
    with pytest.raises(LimitError, match="name"):
        parse_header(resealed(packed, lambda header: header.__setitem__(slice(-4, None), b"\0")))


@pytest.mark.parametrize(
    "section",
    ["07000000", "070000000007000000 00", "0800000000 0700000000"],
    ids=["ragged", "repeated", "unordered"],
)
def test_malformed_parameters_are_refused(section: str) -> None:
    parameters = bytes.fromhex(section)
    packed = HEADER.pack()
    assert packed[8] == 0
    forged = resealed(
        packed, lambda header: header.__setitem__(slice(8, 9), bytes([len(parameters)]) + parameters)
    )
    with pytest.raises(FormatError, match="parameter"):
        parse_header(forged)


def test_parameter_section_is_bounded_before_it_is_read() -> None:
    forged = HEADER.pack()[:8] + pack_varint(limits.MAX_PARAMETERS + 1)
    with pytest.raises(LimitError, match="parameter"):
        parse_header(forged)


def test_parameters_are_written_in_order_of_their_ids() -> None:
    one, other = ({9: 1, 7: 2}, {7: 2, 9: 1})
    assert (
        dataclasses.replace(HEADER, parameters=one).pack()
        == dataclasses.replace(HEADER, parameters=other).pack()
    )


# --- blocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(3, 15))
def test_unknown_kinds_are_refused(kind: int) -> None:
    with pytest.raises(FormatError, match=f"kind {kind}"):
        parse_block(resealed(CODED.pack(), set_byte(0, kind)))


@pytest.mark.parametrize(
    ("block", "bits"),
    [
        (CODED, (5, 6, 7)),
        (RawBlock.of(b"hi!"), (4, 5, 6, 7)),
        (ExtensionBlock.of(1, b""), (4, 5, 6, 7)),
        (EndMarker(0, 0), (4, 5, 6, 7)),
    ],
)
def test_reserved_bits_of_tags_are_refused(block: Block, bits: tuple[int, ...]) -> None:
    packed = block.pack()
    for bit in bits:
        with pytest.raises(FormatError, match="tag"):
            parse_block(resealed(packed, set_byte(0, packed[0] | 1 << bit)))


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 1, 1, 0),
        (limits.MAX_BLOCK + 1, 1, 1, 0),
        (100, 0, 1, 0),
        (100, limits.max_payload(100) + 1, 1, 0),
        (100, 1, 0, 0),
        (100, 1, 101, 0),
        (1 << 20, 1, limits.MAX_LANES + 1, 0),
        (100, 1, 1, limits.MAX_ROWS + 1),
        (100, 1, 64, limits.MAX_ROWS // 64 + 1),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_coded_block_fields_are_checked(numbers: tuple[int, int, int, int]) -> None:
    forged = seal(b"\x11" + b"".join(map(pack_varint, numbers)) + bytes(12))
    with pytest.raises(LimitError):
        parse_block(forged)
    with pytest.raises(LimitError):
        CodedBlock(*numbers, raw_hash=0, payload_crc=0, reset=True)


@pytest.mark.parametrize(
    "forged",
    [
        b"\x02" + pack_varint(0) + bytes(8),
        b"\x02" + pack_varint(limits.MAX_BLOCK + 1) + bytes(8),
        b"\x0f" + pack_varint(1) + pack_varint(limits.MAX_EXTENSION + 1) + bytes(4),
    ],
)
def test_other_block_fields_are_checked(forged: bytes) -> None:
    with pytest.raises(LimitError):
        parse_block(seal(forged))


def test_payloads_are_verified() -> None:
    CODED.verify(bytes.fromhex("deadbeef"))
    CODED.verify_raw(b"ab" * 100)
    RawBlock.of(b"hi!").verify(b"hi!")
    ExtensionBlock.of(5, b"note").verify(b"note")
    for verify, data in [
        (CODED.verify, bytes.fromhex("deadbeee")),
        (CODED.verify_raw, b"ba" * 100),
        (CODED.verify_raw, b"ab" * 99),
        (dataclasses.replace(CODED, raw_length=199).verify_raw, b"ab" * 100),
        (RawBlock.of(b"hi!").verify, b"hi?"),
        (ExtensionBlock.of(5, b"note").verify, b"nota"),
    ]:
        with pytest.raises(CorruptError):
            verify(data)


# --- the specification -----------------------------------------------------------------------------------


def listing(name: str) -> bytes:
    """Return the bytes of a listing in the specification, whose lines are: bytes in hexadecimal, comment."""
    text = SPECIFICATION.read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in found[1].splitlines())


def test_example_is_what_is_written() -> None:
    raw, payload, stored = b"ab" * 100, bytes.fromhex("deadbeef"), b"hi!"
    extension = ExtensionBlock.of(1000, b"note")
    end = EndMarker(203, xxh64_intdigest(raw + stored))
    written = HEADER.pack() + CODED.pack() + payload + RawBlock.of(stored).pack() + stored
    written += extension.pack() + b"note" + end.pack()
    assert written == listing("example")
    assert list(ArchiveReader(io.BytesIO(listing("example")))) == [
        (HEADER, b""),
        (CODED, payload),
        (RawBlock.of(stored), stored),
        (extension, b"note"),
        (end, b""),
    ]


def test_example_with_parameters_is_what_is_written() -> None:
    header = dataclasses.replace(HEADER, flags=FLAG_LEARNING, preset=2, parameters={112: 0x3F800000, 114: 1})
    assert header.pack() == listing("parameters")
    assert parse_header(listing("parameters")) == header
    assert PRESET_NAMES[header.preset] == "best"


def test_comments_of_the_example_count_its_bytes() -> None:
    """Each header's crc32 covers as many bytes as its comment says."""
    text = SPECIFICATION.read_text("utf-8")
    found = re.search(r"<!-- example -->\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    seen = 0
    for block in found[1].split("\n\n"):
        header = b""
        for line in block.splitlines():
            data, _, comment = line.partition("  ")
            covered = re.search(r"crc32 of the (\d+) bytes above", comment)
            if covered:
                assert (int(covered[1]), bytes.fromhex(data)) == (
                    len(header),
                    crc32(header).to_bytes(4, "little"),
                )
                seen += 1
            header += bytes.fromhex(data)
    assert seen == 5


def test_specified_limits_hold_in_the_code() -> None:
    text = SPECIFICATION.read_text("utf-8")
    specified = {name: int(value) for name, value in re.findall(r"\| `(MAX_\w+)` \| (\d+) \|", text)}
    assert specified == {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}


def test_specified_checksums_hold_in_the_code() -> None:
    text = SPECIFICATION.read_text("utf-8")
    assert f"{crc32(b'123456789'):08X}" in text
    assert f"{xxh64_intdigest(b''):016X}" in text
    assert f"version {FORMAT_VERSION}" in text.splitlines()[0]
