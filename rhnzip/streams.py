"""Compress and decompress from one file object to another, or in memory.

What computes (`rhnzip.coding`) is imported when a function is called, not with this module.
"""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from xxhash import xxh64

from rhnzip.archive import (
    FLAG_LEARNING,
    FORMAT_VERSION,
    PRESET_NAMES,
    ArchiveReader,
    CodedBlock,
    EndMarker,
    FrameHeader,
    RawBlock,
    limits,
    read_up_to,
)
from rhnzip.errors import BackendError, CorruptError, FormatError, LimitError, RhnzipError

if TYPE_CHECKING:
    from rhnzip.coding import BlockCodec

Bytes = bytes | bytearray | memoryview
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """What was compressed, decompressed or tested.

    Attributes:
        raw_bytes: length of the original.
        packed_bytes: length of the archive.
        frames: frames in the archive.
        blocks: coded and raw blocks in them.
    """

    raw_bytes: int
    packed_bytes: int
    frames: int
    blocks: int

    @property
    def ratio(self) -> float:
        """Bytes of the original per byte of the archive.

        >>> Summary(raw_bytes=1000, packed_bytes=250, frames=1, blocks=1).ratio
        4.0
        """
        return self.raw_bytes / self.packed_bytes

    @property
    def bpc(self) -> float:
        """Bits of the archive per byte of the original; infinite for an empty original.

        >>> Summary(raw_bytes=1000, packed_bytes=250, frames=1, blocks=1).bpc
        2.0
        """
        return 8 * self.packed_bytes / self.raw_bytes if self.raw_bytes else math.inf


@dataclass(frozen=True)
class BlockInfo:
    """A block, as its header describes it.

    Attributes:
        kind: "coded" or "raw".
        offset: where its header starts, in bytes from the start of the archive.
        raw_bytes: length of its original.
        packed_bytes: length of its header and payload.
        lanes: lanes that step together; 0 in a raw block.
        segment: steps between two updates of the network; 0 where it does not learn.
        reset: whether coding starts from the initial state here.
    """

    kind: str
    offset: int
    raw_bytes: int
    packed_bytes: int
    lanes: int
    segment: int
    reset: bool


@dataclass(frozen=True)
class FrameInfo:
    """A frame, as its headers describe it.

    Attributes:
        offset: where it starts, in bytes from the start of the archive.
        raw_bytes: length of its original.
        packed_bytes: its own length.
        format_version: version of the archive format.
        arithmetic_version: version of the arithmetic that coded it; 0 makes no promise.
        preset: name of the preset, or its number where this release has no name for it.
        learning: whether the network learned while it coded.
        experts: whether count and match models helped the network.
        model_id: the model's id, 16 hexadecimal digits.
        model_name: the model's name.
        parameters: 32-bit values by id.
        blocks: its coded and raw blocks.
    """

    offset: int
    raw_bytes: int
    packed_bytes: int
    format_version: int
    arithmetic_version: int
    preset: str
    learning: bool
    experts: bool
    model_id: str
    model_name: str
    parameters: dict[int, int]
    blocks: tuple[BlockInfo, ...]


def compress_stream(
    source: BinaryIO,
    sink: BinaryIO,
    *,
    model: str | None = None,
    preset: str = "default",
    lanes: int | None = None,
    block_size: int | None = None,
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write all that `source` holds to `sink` as one frame; neither is closed.

    The archive depends on the bytes, the model, the preset, `lanes` and `block_size`, and on nothing else.

    Args:
        source: what to compress; may give fewer bytes than asked for.
        sink: where the archive goes; may take fewer bytes than it is given.
        model: name of a built-in model, or path of a model file; several joined by `+` predict together; None
            takes the default.
        preset: "fast" (frozen network), "default" or "best" (the network learns as it codes).
        lanes: lanes in every block of enough bytes, 1..4096; None lets the preset choose.
        block_size: bytes of the original in a block, 1..2^26; None lets the preset choose.
        backend: what computes; None takes the best at hand.
        device: where it computes.
        threads: how many threads compute; None takes all processors.
        progress: is told how many bytes of the original and of the archive are done.

    Raises:
        RhnzipError: an option cannot be met; nothing was written then.
    """
    from rhnzip import coding

    chosen = coding.PRESETS.get(preset)
    if chosen is None:
        raise RhnzipError(f"there is no preset {preset!r}; this release has: {', '.join(coding.PRESETS)}")
    size = chosen.block_size if block_size is None else block_size
    if not 1 <= size <= limits.MAX_BLOCK:
        raise LimitError(f"a block size of {size:,} bytes is outside 1..{limits.MAX_BLOCK:,}")
    if lanes is not None and not 1 <= lanes <= limits.MAX_LANES:
        raise LimitError(f"a number of lanes of {lanes:,} is outside 1..{limits.MAX_LANES:,}")
    loaded = coding.load(model)
    mode = chosen.mode(loaded.name)
    header = FrameHeader(
        model_id=loaded.id,
        model_name=loaded.name,
        arithmetic_version=coding.ARITHMETIC_VERSION,
        flags=FLAG_LEARNING if chosen.learning else 0,
        preset=chosen.number,
        parameters=mode.parameters,
    )
    codec = coding.open_codec(
        loaded,
        learning=header.learning,
        parameters=header.parameters,
        backend=backend,
        device=device,
        threads=threads,
    )
    packed = _write(sink, header.pack())
    total, blocks, digest = 0, 0, xxh64()
    # Whether the decoder's codec will have seen all that this one saw: only then may a block build on it.
    in_step = False
    while raw := read_up_to(source, size):
        if coding.looks_random(raw):  # stored without a step taken: nothing to forget afterwards
            block = _stored(raw)
        else:
            shape = mode.shape(len(raw))
            block_lanes = min(lanes or shape.lanes, len(raw))
            segment = min(shape.segment, limits.MAX_ROWS // block_lanes)
            reset = not (header.learning and in_step)
            if reset:
                codec.reset()
            update = _of_block(progress, total, packed, len(raw))
            payload = codec.encode(raw, block_lanes, segment, update)
            block, in_step = _pack_block(raw, payload, block_lanes, segment, reset)
        packed += _write(sink, block)
        digest.update(raw)
        total += len(raw)
        blocks += 1
        if progress:
            progress(total, packed)
    packed += _write(sink, EndMarker(total, digest.intdigest()).pack())
    if progress:
        progress(total, packed)
    return Summary(total, packed, 1, blocks)


def decompress_stream(
    source: BinaryIO,
    sink: BinaryIO,
    *,
    model: str | None = None,
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the original of the archive that `source` holds to `sink`; neither is closed.

    Every block is verified before it is written: what was written before an error is the original's start.

    Args:
        source: an archive, of any number of frames; may give fewer bytes than asked for.
        sink: where the original goes; may take fewer bytes than it is given.
        model: path of a model file, for an archive whose model is not built in.
        backend: what computes; None takes the best at hand.
        device: where it computes.
        threads: how many threads compute; None takes all processors.
        progress: is told how many bytes of the original and of the archive are done.

    Raises:
        CorruptError: the archive is damaged or cut short; `recovered` says how many bytes were written.
        FormatError: not an archive, or one that asks for what this release cannot do.
        UnknownModelError: the model is not at hand.
        BackendError: the backend or device is not available.
        LimitError: a block needs more memory than a block may.
    """
    return _decode(source, sink, model, backend, device, threads, progress)


def test_stream(
    source: BinaryIO,
    *,
    model: str | None = None,
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Decode and verify the archive that `source` holds, and keep nothing.

    The arguments and errors are those of `decompress_stream`.
    """
    return _decode(source, None, model, backend, device, threads, progress)


def inspect_stream(source: BinaryIO) -> list[FrameInfo]:
    """Describe the archive that `source` holds from its headers; no model is needed.

    All headers, payloads and raw blocks are verified; not what the coded blocks decode to.

    Raises:
        CorruptError: the archive is damaged or cut short.
        FormatError: not an archive, or of a format that this release does not know.
    """
    reader = ArchiveReader(source)
    frames: list[FrameInfo] = []
    blocks: list[BlockInfo] = []
    offset = frame_offset = 0
    for part, _ in reader:
        match part:
            case FrameHeader():
                header, blocks, frame_offset = part, [], offset
            case CodedBlock() | RawBlock():
                is_coded = isinstance(part, CodedBlock)
                blocks.append(
                    BlockInfo(
                        kind="coded" if is_coded else "raw",
                        offset=offset,
                        raw_bytes=part.raw_length,
                        packed_bytes=reader.position - offset,
                        lanes=part.lanes if isinstance(part, CodedBlock) else 0,
                        segment=part.segment if isinstance(part, CodedBlock) else 0,
                        reset=isinstance(part, CodedBlock) and part.reset,
                    )
                )
            case EndMarker():
                frames.append(
                    FrameInfo(
                        offset=frame_offset,
                        raw_bytes=part.raw_length,
                        packed_bytes=reader.position - frame_offset,
                        format_version=FORMAT_VERSION,
                        arithmetic_version=header.arithmetic_version,
                        preset=PRESET_NAMES.get(header.preset, str(header.preset)),
                        learning=header.learning,
                        experts=header.experts,
                        model_id=header.model_id.hex(),
                        model_name=header.model_name,
                        parameters=header.parameters,
                        blocks=tuple(blocks),
                    )
                )
        offset = reader.position
    return frames


def compress(
    data: Bytes,
    *,
    model: str | None = None,
    preset: str = "default",
    lanes: int | None = None,
    block_size: int | None = None,
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> bytes:
    """Return `data` as an archive; the arguments and errors are those of `compress_stream`."""
    sink = io.BytesIO()
    compress_stream(
        io.BytesIO(data),
        sink,
        model=model,
        preset=preset,
        lanes=lanes,
        block_size=block_size,
        backend=backend,
        device=device,
        threads=threads,
        progress=progress,
    )
    return sink.getvalue()


def decompress(
    data: Bytes,
    *,
    model: str | None = None,
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> bytes:
    """Return the original of an archive; the arguments and errors are those of `decompress_stream`."""
    sink = io.BytesIO()
    _decode(io.BytesIO(data), sink, model, backend, device, threads, progress)
    return sink.getvalue()


def _pack_block(raw: bytes, payload: bytes, lanes: int, segment: int, reset: bool) -> tuple[bytes, bool]:
    """Return a block, coded or raw, whichever is shorter, and whether it is coded."""
    stored = _stored(raw)
    if 0 < len(payload) < len(raw):
        coded = CodedBlock.of(raw, payload, lanes, segment, reset).pack() + payload
        if len(coded) < len(stored):
            return coded, True
    return stored, False


def _stored(raw: bytes) -> bytes:
    return RawBlock.of(raw).pack() + raw


def _decode(
    source: BinaryIO,
    sink: BinaryIO | None,
    model: str | None,
    backend: str | None,
    device: str,
    threads: int | None,
    progress: Progress | None,
) -> Summary:
    """Decode and verify; write to `sink` if there is one."""
    from rhnzip import coding

    learns = any(preset.learning for preset in coding.PRESETS.values())
    reader = ArchiveReader(
        source, supported_flags=FLAG_LEARNING if learns else 0, known_parameters=coding.PARAMETER_IDS
    )
    codecs = _Codecs(model, backend, device, threads)
    total = frames = blocks = offset = 0
    digest = xxh64()
    try:
        for part, payload in reader:
            match part:
                case FrameHeader():
                    if part.arithmetic_version != coding.ARITHMETIC_VERSION:
                        raise FormatError(
                            f"the archive needs arithmetic version {part.arithmetic_version}, this release "
                            f"has {coding.ARITHMETIC_VERSION}; decompress with the release that made it"
                        )
                    header, digest = part, xxh64()
                    frames += 1
                case CodedBlock() | RawBlock():
                    raw = payload
                    if isinstance(part, CodedBlock):
                        update = _of_block(progress, total, offset, part.raw_length)
                        raw = codecs.decode(header, part, payload, update)
                    digest.update(raw)
                    if sink is not None:
                        _write(sink, raw)
                    total += len(raw)
                    blocks += 1
                case EndMarker():
                    if part.raw_hash != digest.intdigest():
                        raise CorruptError("the checksum of a whole frame does not match")
            offset = reader.position
            if progress:
                progress(total, offset)
    except CorruptError as error:
        found = f"found at byte {reader.position:,}; the first {total:,} bytes of the original are good"
        raise CorruptError(f"{error} ({found})", total) from error
    return Summary(total, reader.position, frames, blocks)


class _Codecs:
    """Opens the codec that a frame needs, one at a time; frames that need the same share it."""

    def __init__(self, model: str | None, backend: str | None, device: str, threads: int | None) -> None:
        self._model, self._backend, self._device, self._threads = model, backend, device, threads
        self._codec: BlockCodec | None = None
        self._needs: tuple[bytes, int, dict[int, int]] | None = None

    def decode(
        self,
        header: FrameHeader,
        block: CodedBlock,
        payload: bytes,
        update: Callable[[int, int], None] | None,
    ) -> bytes:
        """Return the original of a block, verified.

        Raises:
            CorruptError: it cannot be decoded.
        """
        codec = self._open(header)
        try:
            if block.reset:
                codec.reset()
            raw = codec.decode(payload, block.raw_length, block.lanes, block.segment, update)
        except (BackendError, LimitError):  # this machine cannot; the archive may be whole
            raise
        except RhnzipError as error:
            raise CorruptError(f"a block cannot be decoded: {error}") from error
        block.verify_raw(raw)
        return raw

    def _open(self, header: FrameHeader) -> BlockCodec:
        from rhnzip import coding

        needs = header.model_id, header.flags, header.parameters
        if self._codec is None or self._needs != needs:
            self._codec = None  # its memory is free before the next one takes its own
            loaded = coding.find_model(header.model_id, header.model_name, self._model)
            self._codec = coding.open_codec(
                loaded,
                learning=header.learning,
                parameters=header.parameters,
                backend=self._backend,
                device=self._device,
                threads=self._threads,
            )
            self._needs = needs
        return self._codec


def _of_block(
    progress: Progress | None, raw_before: int, packed_before: int, raw_length: int
) -> Callable[[int, int], None] | None:
    """Return what a codec tells its progress in a block to."""
    if progress is None:
        return None

    def update(raw: int, packed: int) -> None:
        progress(raw_before + raw, packed_before + min(packed, raw_length))  # at worst, it is stored

    return update


def _write(sink: BinaryIO, data: bytes) -> int:
    """Write all of `data`, and return its length."""
    length = len(data)
    while data:
        written = sink.write(data)
        if not written:
            raise BlockingIOError(errno.EAGAIN, "the sink is in non-blocking mode and takes no data now")
        data = data[written:]
    return length
