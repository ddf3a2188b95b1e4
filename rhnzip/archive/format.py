"""Headers of the .rhn format, version 1, as docs/format.md specifies them.

Each dataclass is one header: making one checks its fields, `pack` writes it, `read` reads it back. The
checksum is checked before the fields, so that damage is told from what this release does not know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar
from zlib import crc32

from xxhash import xxh64_intdigest

from rhnzip.archive import limits
from rhnzip.archive.fields import FieldReader, pack_varint, seal
from rhnzip.errors import CorruptError, FormatError, LimitError

MAGIC = bytes.fromhex("8f52484e")
FORMAT_VERSION = 1
MODEL_ID_BYTES = 8

FLAG_LEARNING = 1
"""The network learns while it codes."""

FLAG_EXPERTS = 2
"""Count and match models help the network."""

FLAG_NAMES = {FLAG_LEARNING: "learning", FLAG_EXPERTS: "experts"}
ALL_FLAGS = FLAG_LEARNING | FLAG_EXPERTS

PRESET_NAMES = {0: "fast", 1: "default", 2: "best"}

_KIND = 0x0F
_RESET = 0x10

# Control characters, line breaks and marks that change the direction of text: a name is shown on terminals.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def _in_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise LimitError(f"{what} of {value:,} is outside {low:,}..{high:,}")


@dataclass(frozen=True)
class FrameHeader:
    """What a decoder needs to know before the blocks of a frame.

    Attributes:
        model_id: 8 bytes that identify the model.
        model_name: what to call the model in messages.
        arithmetic_version: version of the arithmetic that coded the frame, 0..255; 0 makes no promise.
        flags: FLAG_LEARNING, FLAG_EXPERTS.
        preset: number of the preset, 0..255, for people to read; PRESET_NAMES names some.
        parameters: 32-bit values by id, 0..255.
    """

    model_id: bytes
    model_name: str
    arithmetic_version: int = 0
    flags: int = 0
    preset: int = 0
    parameters: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            FormatError: a reserved flag is set, or the name is not fit to be shown.
            LimitError: a field is out of range.
        """
        _in_range("model id length", len(self.model_id), MODEL_ID_BYTES, MODEL_ID_BYTES)
        _in_range("arithmetic version", self.arithmetic_version, 0, 255)
        _in_range("preset", self.preset, 0, 255)
        if self.flags & ~ALL_FLAGS:
            raise FormatError(
                f"the frame's flags {self.flags:#04x} are not known; a newer rhnzip may read it"
            )
        _in_range("parameter section", 5 * len(self.parameters), 0, limits.MAX_PARAMETERS)
        for identifier, value in self.parameters.items():
            _in_range("parameter id", identifier, 0, 255)
            _in_range("parameter value", value, 0, (1 << 32) - 1)
        try:
            name = self.model_name.encode()
        except UnicodeEncodeError as error:
            raise FormatError("the model's name is not text") from error
        _in_range("model name length", len(name), 1, limits.MAX_NAME)
        if _UNPRINTABLE.search(self.model_name):
            raise FormatError("the model's name holds characters that cannot be shown")

    @property
    def learning(self) -> bool:
        """Whether the network learns while it codes."""
        return bool(self.flags & FLAG_LEARNING)

    @property
    def experts(self) -> bool:
        """Whether count and match models help the network."""
        return bool(self.flags & FLAG_EXPERTS)

    def pack(self) -> bytes:
        """Return the header's bytes, from the magic to the checksum."""
        parameters = b"".join(
            bytes([identifier]) + value.to_bytes(4, "little")
            for identifier, value in sorted(self.parameters.items())
        )
        name = self.model_name.encode()
        fixed = bytes([FORMAT_VERSION, self.arithmetic_version, self.flags, self.preset])
        section = pack_varint(len(parameters)) + parameters
        return seal(MAGIC + fixed + section + self.model_id + bytes([len(name)]) + name)

    @classmethod
    def read(cls, fields: FieldReader) -> FrameHeader:
        """Read what follows the magic.

        Raises:
            FormatError: another format version, or a field that this release does not know.
            LimitError: a field is out of range.
            CorruptError: damaged.
        """
        version = fields.integer(1)
        if version != FORMAT_VERSION:
            raise FormatError(
                f"format version {version}, but this release reads {FORMAT_VERSION}; try a newer rhnzip"
            )
        arithmetic_version, flags, preset = fields.integer(1), fields.integer(1), fields.integer(1)
        length = fields.varint()
        _in_range("parameter section", length, 0, limits.MAX_PARAMETERS)
        parameters = fields.data(length)
        model_id = fields.data(MODEL_ID_BYTES)
        name = fields.data(fields.integer(1))
        fields.check()
        try:
            model_name = name.decode()
        except UnicodeDecodeError as error:
            raise FormatError("the model's name is not text") from error
        return cls(model_id, model_name, arithmetic_version, flags, preset, _parse_parameters(parameters))


def _parse_parameters(section: bytes) -> dict[int, int]:
    if len(section) % 5:
        raise FormatError(f"a parameter section of {len(section)} bytes is not a whole number of parameters")
    entries = [section[start : start + 5] for start in range(0, len(section), 5)]
    ids = [entry[0] for entry in entries]
    if any(later <= earlier for earlier, later in zip(ids, ids[1:], strict=False)):
        raise FormatError("the parameters of a frame are not in order")
    return {entry[0]: int.from_bytes(entry[1:], "little") for entry in entries}


@dataclass(frozen=True)
class CodedBlock:
    """Header of a block that was coded.

    Attributes:
        raw_length: bytes of the original, 1..MAX_BLOCK.
        payload_length: coded bytes behind the header, 1..max_payload(raw_length).
        lanes: lanes that step together, 1..MAX_LANES and at most `raw_length`.
        segment: steps between two updates of the network, lanes * segment <= MAX_ROWS; 0 = it does not learn.
        raw_hash: xxh64 of the original.
        payload_crc: crc32 of the payload.
        reset: whether coding starts from the initial state here.
    """

    kind: ClassVar[int] = 1

    raw_length: int
    payload_length: int
    lanes: int
    segment: int
    raw_hash: int
    payload_crc: int
    reset: bool

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            LimitError: a field is out of range.
        """
        _in_range("block", self.raw_length, 1, limits.MAX_BLOCK)
        _in_range("payload", self.payload_length, 1, limits.max_payload(self.raw_length))
        _in_range("number of lanes", self.lanes, 1, min(limits.MAX_LANES, self.raw_length))
        _in_range("segment", self.segment, 0, limits.MAX_ROWS // self.lanes)

    @classmethod
    def of(cls, raw: bytes, payload: bytes, lanes: int, segment: int, reset: bool) -> CodedBlock:
        """Describe a block and its payload."""
        return cls(len(raw), len(payload), lanes, segment, xxh64_intdigest(raw), crc32(payload), reset)

    def pack(self) -> bytes:
        """Return the header's bytes."""
        tag = bytes([self.kind | (_RESET if self.reset else 0)])
        numbers = (self.raw_length, self.payload_length, self.lanes, self.segment)
        checksums = self.raw_hash.to_bytes(8, "little") + self.payload_crc.to_bytes(4, "little")
        return seal(tag + b"".join(map(pack_varint, numbers)) + checksums)

    @classmethod
    def read(cls, fields: FieldReader, tag: int) -> CodedBlock:
        """Read what follows the tag."""
        lengths = fields.varint(), fields.varint(), fields.varint(), fields.varint()
        raw_hash, payload_crc = fields.integer(8), fields.integer(4)
        fields.check()
        return cls(*lengths, raw_hash, payload_crc, bool(tag & _RESET))

    def verify(self, payload: bytes) -> None:
        """Raise CorruptError if this is not the block's payload."""
        if crc32(payload) != self.payload_crc:
            raise CorruptError("a block is damaged: the checksum of its payload does not match")

    def verify_raw(self, raw: bytes) -> None:
        """Raise CorruptError if this is not the block's original."""
        if len(raw) != self.raw_length or xxh64_intdigest(raw) != self.raw_hash:
            raise CorruptError("a block did not decode to its original: their checksums differ")


@dataclass(frozen=True)
class RawBlock:
    """Header of a block that is stored as it is.

    Attributes:
        raw_length: bytes behind the header, 1..MAX_BLOCK.
        raw_hash: their xxh64.
    """

    kind: ClassVar[int] = 2

    raw_length: int
    raw_hash: int

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            LimitError: a field is out of range.
        """
        _in_range("block", self.raw_length, 1, limits.MAX_BLOCK)

    @property
    def payload_length(self) -> int:
        """Bytes behind the header."""
        return self.raw_length

    @classmethod
    def of(cls, raw: bytes) -> RawBlock:
        """Describe a block."""
        return cls(len(raw), xxh64_intdigest(raw))

    def pack(self) -> bytes:
        """Return the header's bytes."""
        tag = bytes([self.kind])
        return seal(tag + pack_varint(self.raw_length) + self.raw_hash.to_bytes(8, "little"))

    @classmethod
    def read(cls, fields: FieldReader, _tag: int) -> RawBlock:
        """Read what follows the tag."""
        raw_length, raw_hash = fields.varint(), fields.integer(8)
        fields.check()
        return cls(raw_length, raw_hash)

    def verify(self, payload: bytes) -> None:
        """Raise CorruptError if these are not the block's bytes."""
        if xxh64_intdigest(payload) != self.raw_hash:
            raise CorruptError("a block is damaged: the checksum of its bytes does not match")


@dataclass(frozen=True)
class ExtensionBlock:
    """Header of a block that adds to the archive and not to the original; a decoder may skip it.

    Attributes:
        extension: what it is, below 2^64.
        payload_length: bytes behind the header, 0..MAX_EXTENSION.
        payload_crc: their crc32.
    """

    kind: ClassVar[int] = 15

    extension: int
    payload_length: int
    payload_crc: int

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            LimitError: a field is out of range.
        """
        _in_range("extension", self.payload_length, 0, limits.MAX_EXTENSION)

    @classmethod
    def of(cls, extension: int, payload: bytes) -> ExtensionBlock:
        """Describe an extension and its payload."""
        return cls(extension, len(payload), crc32(payload))

    def pack(self) -> bytes:
        """Return the header's bytes."""
        tag = bytes([self.kind])
        numbers = pack_varint(self.extension) + pack_varint(self.payload_length)
        return seal(tag + numbers + self.payload_crc.to_bytes(4, "little"))

    @classmethod
    def read(cls, fields: FieldReader, _tag: int) -> ExtensionBlock:
        """Read what follows the tag."""
        extension, payload_length, payload_crc = fields.varint(), fields.varint(), fields.integer(4)
        fields.check()
        return cls(extension, payload_length, payload_crc)

    def verify(self, payload: bytes) -> None:
        """Raise CorruptError if this is not the extension's payload."""
        if crc32(payload) != self.payload_crc:
            raise CorruptError("an extension is damaged: the checksum of its payload does not match")


@dataclass(frozen=True)
class EndMarker:
    """The end of a frame.

    Attributes:
        raw_length: bytes of the original in all blocks of the frame.
        raw_hash: their xxh64.
    """

    kind: ClassVar[int] = 0

    raw_length: int
    raw_hash: int

    def pack(self) -> bytes:
        """Return the marker's bytes."""
        tag = bytes([self.kind])
        return seal(tag + pack_varint(self.raw_length) + self.raw_hash.to_bytes(8, "little"))

    @classmethod
    def read(cls, fields: FieldReader, _tag: int) -> EndMarker:
        """Read what follows the tag."""
        raw_length, raw_hash = fields.varint(), fields.integer(8)
        fields.check()
        return cls(raw_length, raw_hash)


Block = CodedBlock | RawBlock | ExtensionBlock | EndMarker

_TYPES: dict[int, type[Block]] = {
    block.kind: block for block in (EndMarker, CodedBlock, RawBlock, ExtensionBlock)
}


def read_block(fields: FieldReader) -> Block:
    """Read the header of a block, from its tag to its checksum.

    Raises:
        FormatError: a kind or flag of block that this release does not know.
        LimitError: a field is out of range.
        CorruptError: damaged.
    """
    tag = fields.integer(1)
    block_type = _TYPES.get(tag & _KIND)
    if block_type is None:
        raise FormatError(f"a block is of kind {tag & _KIND}, which this release does not know")
    block = block_type.read(fields, tag)
    if tag & ~(_KIND | (_RESET if block_type is CodedBlock else 0)):
        raise FormatError(f"a block's tag {tag:#04x} is not known; a newer rhnzip may read it")
    return block
