from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhnzip.archive.fields import FieldReader, pack_varint, seal
from rhnzip.errors import CorruptError, LimitError


def fields(data: bytes) -> FieldReader:
    return FieldReader(io.BytesIO(data).read)


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_varint_round_trip(value: int) -> None:
    packed = pack_varint(value)
    assert len(packed) == max(1, -(-value.bit_length() // 7))
    reader = fields(packed + b"\xff")
    assert reader.varint() == value
    assert reader.integer(1) == 0xFF


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_varint_holds_64_bits(value: int) -> None:
    with pytest.raises(LimitError):
        pack_varint(value)


@pytest.mark.parametrize(
    "packed",
    ["8000", "ff00", "808000", "80808080808080808000", "ffffffffffffffffff02", "ffffffffffffffffffff01"],
)
def test_only_the_shortest_varint_is_read(packed: str) -> None:
    with pytest.raises(CorruptError):
        fields(bytes.fromhex(packed)).varint()


def test_integers_are_little_endian() -> None:
    assert fields(bytes.fromhex("01020304")).integer(4) == 0x04030201


def test_checksum_covers_the_start_and_all_fields() -> None:
    sealed = seal(b"start" + bytes([7]) + pack_varint(300) + b"data")
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 0x40
        for data, is_good in [(sealed, True), (bytes(damaged), False)]:
            reader = FieldReader(io.BytesIO(data[5:]).read, data[:5])
            reader.data(1 + 2 + 4)
            if is_good:
                reader.check()
            else:
                with pytest.raises(CorruptError):
                    reader.check()
