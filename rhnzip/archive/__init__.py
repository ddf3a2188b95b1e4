"""The .rhn archive format (docs/format.md): headers, blocks, checksums; it knows nothing of networks."""

from __future__ import annotations

from rhnzip.archive.format import (
    ALL_FLAGS,
    FLAG_EXPERTS,
    FLAG_LEARNING,
    FORMAT_VERSION,
    MAGIC,
    PRESET_NAMES,
    Block,
    CodedBlock,
    EndMarker,
    ExtensionBlock,
    FrameHeader,
    RawBlock,
)
from rhnzip.archive.reader import ArchiveReader, read_up_to

__all__ = [
    "ALL_FLAGS",
    "FLAG_EXPERTS",
    "FLAG_LEARNING",
    "FORMAT_VERSION",
    "MAGIC",
    "PRESET_NAMES",
    "ArchiveReader",
    "Block",
    "CodedBlock",
    "EndMarker",
    "ExtensionBlock",
    "FrameHeader",
    "RawBlock",
    "read_up_to",
]
