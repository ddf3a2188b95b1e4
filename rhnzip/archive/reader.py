"""Reads an archive part by part, in bounded memory, and checks all that can be checked without a network."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from typing import BinaryIO

from rhnzip.archive.fields import FieldReader
from rhnzip.archive.format import (
    ALL_FLAGS,
    FLAG_NAMES,
    MAGIC,
    Block,
    CodedBlock,
    EndMarker,
    FrameHeader,
    RawBlock,
    read_block,
)
from rhnzip.errors import CorruptError, FormatError

# A forged length must not make a file object allocate that much before it finds that the bytes are not there.
_READ_SIZE = 1 << 20


def read_up_to(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes; fewer only where the file ends.

    Raises:
        BlockingIOError: the file is in non-blocking mode and has nothing to give now.
    """
    chunks = []
    while size:
        chunk = file.read(min(size, _READ_SIZE))
        if chunk is None:
            raise BlockingIOError(errno.EAGAIN, "the source is in non-blocking mode and has no data yet")
        if not chunk:
            break
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


class ArchiveReader:
    """Iterates over an archive's parts: for each frame its header, its blocks and its end marker.

    Each part comes with its payload, empty for a frame header and an end marker. All checksums are verified
    but those of what a coded block decodes to, and of the whole frame: these need the network.

    Attributes:
        position: how many bytes of the archive were read.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        supported_flags: int = ALL_FLAGS,
        known_parameters: Collection[int] = range(256),
    ) -> None:
        """Read from `file`, which may give fewer bytes than asked for.

        Args:
            file: an archive from its first byte on.
            supported_flags: frames with other flags are refused.
            known_parameters: frames with other parameter ids are refused.
        """
        self.position = 0
        self._file = file
        self._supported_flags = supported_flags
        self._known_parameters = known_parameters

    def __iter__(self) -> Iterator[tuple[FrameHeader | Block, bytes]]:
        """Iterate once, from the first byte to the last.

        Raises:
            FormatError: not an archive, or one that asks for what is not known or not supported.
            CorruptError: the archive is damaged or cut short.
        """
        start = self._up_to(len(MAGIC))
        if start != MAGIC:
            raise FormatError("this is not a .rhn archive")
        while start:
            if start != MAGIC:
                raise CorruptError("bytes that are not of an archive follow its end")
            yield from self._frame()
            start = self._up_to(len(MAGIC))

    def _frame(self) -> Iterator[tuple[FrameHeader | Block, bytes]]:
        header = FrameHeader.read(FieldReader(self._exactly, MAGIC))
        self._check_support(header)
        yield header, b""
        raw_length, is_first = 0, True
        while True:
            block = read_block(FieldReader(self._exactly))
            if isinstance(block, EndMarker):
                if block.raw_length != raw_length:
                    raise CorruptError(
                        f"a frame holds {raw_length:,} bytes, but its end says {block.raw_length:,}"
                    )
                yield block, b""
                return
            if isinstance(block, CodedBlock):
                _check_coded(block, header, is_first)
                is_first = False
            payload = self._exactly(block.payload_length)
            block.verify(payload)
            if isinstance(block, CodedBlock | RawBlock):
                raw_length += block.raw_length
            yield block, payload

    def _check_support(self, header: FrameHeader) -> None:
        missing = [name for flag, name in FLAG_NAMES.items() if header.flags & ~self._supported_flags & flag]
        if missing:
            raise FormatError(f"the archive uses {' and '.join(missing)}; a newer rhnzip may decode it")
        unknown = header.parameters.keys() - set(self._known_parameters)
        if unknown:
            raise FormatError(
                f"parameter {min(unknown)} of the archive is not known; a newer rhnzip may decode it"
            )

    def _up_to(self, size: int) -> bytes:
        data = read_up_to(self._file, size)
        self.position += len(data)
        return data

    def _exactly(self, size: int) -> bytes:
        data = self._up_to(size)
        if len(data) < size:
            raise CorruptError("the archive is cut short: its end marker is missing")
        return data


def _check_coded(block: CodedBlock, header: FrameHeader, is_first: bool) -> None:
    """Check a coded block against its frame.

    Raises:
        FormatError: the frame cannot hold such a block.
    """
    if (is_first or not header.learning) and not block.reset:
        raise FormatError("a block builds on blocks that are not there: its reset flag is missing")
    if header.learning != (block.segment > 0):
        raise FormatError(
            f"a segment of {block.segment} in a frame that {'learns' if header.learning else 'is frozen'}"
        )
