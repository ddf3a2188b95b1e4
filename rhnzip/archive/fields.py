"""What headers are made of: little-endian integers, varints, and the checksum that ends a header."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from rhnzip.errors import CorruptError, LimitError


def pack_varint(value: int) -> bytes:
    """Write an integer below 2^64 as LEB128: 7 bits a byte, lowest first, in as few bytes as it takes.

    >>> pack_varint(127).hex(), pack_varint(128).hex(), len(pack_varint((1 << 64) - 1))
    ('7f', '8001', 10)
    """
    if not 0 <= value < 1 << 64:
        raise LimitError(f"{value} does not fit into 64 bits")
    packed = bytearray()
    while value >= 0x80:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def seal(header: bytes) -> bytes:
    """Return a header with the crc32 of its bytes behind it."""
    return header + crc32(header).to_bytes(4, "little")


class FieldReader:
    """Reads the fields of one header in order, and keeps its bytes for the checksum at its end."""

    def __init__(self, take: Callable[[int], bytes], start: bytes = b"") -> None:
        """Read with `take`, which returns as many bytes as asked for or raises; `start` was read before."""
        self._take = take
        self._seen = bytearray(start)

    def data(self, size: int) -> bytes:
        """Read `size` bytes."""
        data = self._take(size)
        self._seen += data
        return data

    def integer(self, size: int) -> int:
        """Read an integer of `size` bytes."""
        return int.from_bytes(self.data(size), "little")

    def varint(self) -> int:
        """Read a varint.

        Raises:
            CorruptError: it is longer than its value needs, or does not fit into 64 bits.
        """
        value = 0
        for shift in range(0, 70, 7):
            byte = self.integer(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if (byte == 0 and shift) or value >= 1 << 64:
                    break
                return value
        raise CorruptError("a header holds a number that no encoder writes")

    def check(self) -> None:
        """Read the checksum, and compare it with the bytes before it.

        Raises:
            CorruptError: they differ.
        """
        expected = crc32(self._seen)
        if self.integer(4) != expected:
            raise CorruptError("a header is damaged: its checksum does not match")
