"""The streams over a toy codec: deflate, primed with what came before when it learns."""

from __future__ import annotations

import gc
import io
import random
import struct
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rhnzip
from rhnzip import streams
from rhnzip.archive import (
    ArchiveReader,
    CodedBlock,
    EndMarker,
    ExtensionBlock,
    FrameHeader,
    RawBlock,
    limits,
)
from rhnzip.errors import (
    BackendError,
    CorruptError,
    FormatError,
    LimitError,
    RhnzipError,
    UnknownModelError,
)
from rhnzip.streams import Summary, compress, compress_stream, decompress, decompress_stream, inspect_stream


@dataclass(frozen=True)
class Shape:
    lanes: int
    segment: int


@dataclass(frozen=True)
class ToyMode:
    parameters: dict[int, int]

    def shape(self, length: int) -> Shape:
        return Shape(max(1, length // 64), 3 if self.parameters else 0)


@dataclass(frozen=True)
class ToyPreset:
    name: str
    number: int
    learning: bool
    block_size: int

    def mode(self, _model_name: str) -> ToyMode:
        return ToyMode({1: 0x3F800000} if self.learning else {})


@dataclass(frozen=True)
class ToyModel:
    id: bytes
    name: str


class ToyCodec:
    """Lanes, segment and state go into the payload: a decoder that has others fails."""

    fault: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, model: ToyModel, learning: bool) -> None:
        self.model = model
        self.learning = learning
        self.seen = b""

    def reset(self) -> None:
        self.seen = b""

    def _start(self, lanes: int, segment: int) -> bytes:
        return struct.pack("<HII", lanes, segment, zlib.crc32(self.model.id + self.seen))

    def _learn(self, raw: bytes) -> None:
        if self.learning:
            self.seen += raw

    def encode(
        self, raw: bytes, lanes: int, segment: int, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        assert 1 <= lanes <= min(len(raw), limits.MAX_LANES) and lanes * segment <= limits.MAX_ROWS
        coder = zlib.compressobj(wbits=-15, zdict=self.model.id + self.seen)
        payload = self._start(lanes, segment) + coder.compress(raw) + coder.flush()
        self._learn(raw)
        if progress:
            progress(len(raw) // 2, len(payload) // 2)
        return payload

    def decode(
        self,
        payload: bytes,
        length: int,
        lanes: int,
        segment: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> bytes:
        self.fault()
        start = self._start(lanes, segment)
        if not payload.startswith(start):
            raise CorruptError("not what the encoder had")
        coder = zlib.decompressobj(wbits=-15, zdict=self.model.id + self.seen)
        try:
            raw = coder.decompress(payload[len(start) :], length)
        except zlib.error as error:
            raise CorruptError("nonsense in the payload") from error
        self._learn(raw)
        if progress:
            progress(len(raw) // 2, len(payload) // 2)
        return raw


@dataclass
class Toy:
    """The stand-in for rhnzip.coding, and what was asked of it."""

    module: types.ModuleType
    opened: list[tuple[str, bool]] = field(default_factory=list)
    open_at_once: list[int] = field(default_factory=list)
    options: list[tuple[str | None, str, int | None]] = field(default_factory=list)


MODELS = [ToyModel(b"\x01" * 8, "toy"), ToyModel(b"\x02" * 8, "other")]
PRESETS = {
    "default": ToyPreset("default", 1, False, 512),
    "best": ToyPreset("best", 2, True, 512),
}


def make_toy() -> Toy:
    toy = Toy(types.ModuleType("rhnzip.coding"))
    alive: weakref.WeakSet[ToyCodec] = weakref.WeakSet()

    def load_model(name: str | None = None) -> ToyModel:
        for model in MODELS:
            if model.name == (name or "toy"):
                return model
        raise UnknownModelError(f"no model {name!r}")

    def find_model(model_id: bytes, name: str, extra: str | None = None) -> ToyModel:
        for model in MODELS if extra is None else [load_model(extra)]:
            if model.id == model_id:
                return model
        raise UnknownModelError(f"the archive needs model {name!r}, id {model_id.hex()}")

    def open_codec(
        model: ToyModel,
        *,
        learning: bool,
        parameters: dict[int, int],
        backend: str | None,
        device: str,
        threads: int | None,
    ) -> ToyCodec:
        assert parameters == ({1: 0x3F800000} if learning else {})
        if backend == "none":
            raise BackendError("there is no such backend")
        toy.opened.append((model.name, learning))
        toy.options.append((backend, device, threads))
        codec = ToyCodec(model, learning)
        alive.add(codec)
        toy.open_at_once.append(len(alive))
        return codec

    toy.module.load = load_model
    for thing in (find_model, open_codec):
        setattr(toy.module, thing.__name__, thing)
    toy.module.PRESETS = PRESETS
    toy.module.PARAMETER_IDS = {1: "rate"}
    toy.module.looks_random = lambda raw: raw.startswith(b"random")
    toy.module.ARITHMETIC_VERSION = 7
    return toy


@pytest.fixture(scope="module", autouse=True)
def toy_module() -> Iterator[Toy]:
    toy = make_toy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "rhnzip.coding", toy.module)
        patch.setattr(rhnzip, "coding", toy.module, raising=False)
        yield toy


@pytest.fixture
def toy(toy_module: Toy) -> Toy:
    gc.collect()
    toy_module.opened.clear()
    toy_module.open_at_once.clear()
    toy_module.options.clear()
    return toy_module


class Trickle(io.RawIOBase):
    """A file that takes and gives a few bytes at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self.data.read(min(size, 7))

    def write(self, data: bytes) -> int:
        return self.data.write(data[:5])


TEXT = b"".join(b"line %d of a text that compresses\n" % number for number in range(60))
NOISE = random.Random(1).randbytes(600)
MIXED = TEXT[:1000] + NOISE + TEXT[1000:]
SAMPLES = [b"", b"a", b"ab" * 40, TEXT, NOISE, MIXED]
PRESET_NAMES = pytest.mark.parametrize("preset", list(PRESETS))


def parts(archive: bytes) -> list[object]:
    return [part for part, _ in ArchiveReader(io.BytesIO(archive))]


def end_of_first_frame(archive: bytes) -> int:
    reader = ArchiveReader(io.BytesIO(archive))
    return next(reader.position for part, _ in reader if isinstance(part, EndMarker))


# --- round trips -----------------------------------------------------------------------------------------


@PRESET_NAMES
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_round_trip(data: bytes, preset: str) -> None:
    archive = compress(data, preset=preset)
    assert decompress(archive) == data
    assert compress(data, preset=preset) == archive


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([TEXT[:300], b"x" * 90])), max_size=6),
    st.sampled_from(list(PRESETS)),
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(1, limits.MAX_LANES)),
)
def test_round_trip_of_anything(pieces: list[bytes], preset: str, block_size: int, lanes: int | None) -> None:
    data = b"".join(pieces)
    archive = compress(data, preset=preset, block_size=block_size, lanes=lanes)
    assert decompress(archive) == data


@PRESET_NAMES
def test_pipes_and_files_give_equal_bytes(preset: str) -> None:
    sink = Trickle()
    summary = compress_stream(Trickle(MIXED), sink, preset=preset)
    archive = sink.data.getvalue()
    assert archive == compress(MIXED, preset=preset)
    back = Trickle()
    assert decompress_stream(Trickle(archive), back) == summary
    assert back.data.getvalue() == MIXED


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like_data(kind: Callable[[bytes], bytes]) -> None:
    archive = compress(kind(TEXT))
    assert archive == compress(TEXT)
    assert decompress(kind(archive)) == TEXT


def test_empty_input_is_a_frame_without_blocks() -> None:
    archive = compress(b"")
    assert [type(part) for part in parts(archive)] == [FrameHeader, EndMarker]
    assert decompress(archive) == b""


def test_header_names_what_was_used() -> None:
    header = parts(compress(TEXT, preset="best", model="other"))[0]
    rate = {1: 0x3F800000}
    assert header == FrameHeader(
        b"\x02" * 8, "other", arithmetic_version=7, flags=1, preset=2, parameters=rate
    )


@PRESET_NAMES
def test_joined_archives_hold_joined_originals(preset: str, toy: Toy) -> None:
    archives = [compress(data, preset=preset) for data in SAMPLES]
    toy.opened.clear()
    assert decompress(b"".join(archives)) == b"".join(SAMPLES)
    assert toy.opened == [("toy", preset == "best")]  # one codec serves frames that need the same


def test_frames_may_differ_in_all(toy: Toy) -> None:
    archives = [compress(TEXT), compress(TEXT, preset="best"), compress(TEXT, model="other"), compress(NOISE)]
    toy.opened.clear()
    assert decompress(b"".join(archives)) == TEXT * 3 + NOISE
    assert toy.opened == [("toy", False), ("toy", True), ("other", False)]
    assert set(toy.open_at_once) == {1}


def test_extensions_are_skipped() -> None:
    archive = compress(TEXT)
    extension = ExtensionBlock.of(12345, b"note").pack() + b"note"
    start = len(parts(archive)[0].pack())
    assert decompress(archive[:start] + extension + archive[start:]) == TEXT


# --- blocks ----------------------------------------------------------------------------------------------


def test_blocks_have_the_size_asked_for() -> None:
    blocks = parts(compress(TEXT[:1100]))[1:-1]
    assert [block.raw_length for block in blocks] == [512, 512, 76]
    blocks = parts(compress(TEXT[:1100], block_size=400))[1:-1]
    assert [block.raw_length for block in blocks] == [400, 400, 300]


def test_what_does_not_shrink_is_stored_raw() -> None:
    assert [type(part) for part in parts(compress(NOISE))] == [FrameHeader, RawBlock, RawBlock, EndMarker]
    assert len(compress(NOISE)) - len(compress(b"")) < len(NOISE) + 40


def test_frozen_blocks_all_reset() -> None:
    blocks = parts(compress(TEXT))[1:-1]
    assert len(blocks) == 4
    assert all(isinstance(block, CodedBlock) and block.reset and block.segment == 0 for block in blocks)


def test_learning_builds_on_earlier_blocks() -> None:
    blocks = parts(compress(TEXT, preset="best"))[1:-1]
    assert [block.reset for block in blocks] == [True, False, False, False]
    assert all(block.segment == 3 for block in blocks)
    assert len(compress(TEXT, preset="best")) < len(compress(TEXT))


def test_learning_starts_anew_after_a_raw_block() -> None:
    data = TEXT[:1024] + NOISE[:512] + TEXT[:1024]
    blocks = parts(compress(data, preset="best"))[1:-1]
    assert [getattr(block, "reset", "raw") for block in blocks] == [True, False, "raw", True, False]
    assert decompress(compress(data, preset="best")) == data


def test_lanes() -> None:
    def lanes(**options: int) -> list[int]:
        return [block.lanes for block in parts(compress(b"a" * 600, **options))[1:-1]]

    assert lanes() == [8, 1]
    assert lanes(lanes=100) == [100, 88]


def test_many_lanes_shorten_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyMode, "shape", lambda _self, _length: Shape(1, 1 << 16))
    data = b"a" * 600
    archive = compress(data, preset="best", lanes=512)
    assert [block.segment for block in parts(archive)[1:-1]] == [256, limits.MAX_ROWS // 88]
    assert decompress(archive) == data


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"preset": "nonsense"}, RhnzipError, "default, best"),
        ({"model": "nonsense"}, UnknownModelError, "nonsense"),
        ({"backend": "none"}, BackendError, "backend"),
        ({"block_size": 0}, LimitError, "block size"),
        ({"block_size": limits.MAX_BLOCK + 1}, LimitError, "block size"),
        ({"lanes": 0}, LimitError, "lanes"),
        ({"lanes": limits.MAX_LANES + 1}, LimitError, "lanes"),
    ],
)
def test_options_that_cannot_be_met(options: dict[str, object], error: type[Exception], text: str) -> None:
    sink = io.BytesIO()
    with pytest.raises(error, match=text):
        compress_stream(io.BytesIO(TEXT), sink, **options)
    assert sink.getvalue() == b""


def test_engine_options_reach_the_codec(toy: Toy) -> None:
    engine = {"backend": "portable", "device": "cuda", "threads": 3}
    archive = compress(TEXT, **engine)
    decompress(archive, **engine)
    streams.test_stream(io.BytesIO(archive), **engine)
    decompress(archive)
    assert toy.options == [("portable", "cuda", 3)] * 3 + [(None, "cpu", None)]


def test_model_option_reaches_the_decoder() -> None:
    archive = compress(TEXT, model="other")
    assert decompress(archive, model="other") == TEXT
    with pytest.raises(UnknownModelError, match="0202020202020202"):
        decompress(archive, model="toy")


# --- what cannot be decoded ------------------------------------------------------------------------------


def with_header(archive: bytes, **changes: object) -> bytes:
    header = parts(archive)[0]
    return replace(header, **changes).pack() + archive[len(header.pack()) :]


def test_other_arithmetic_is_refused() -> None:
    with pytest.raises(FormatError, match=r"version 9.* 7;"):
        decompress(with_header(compress(TEXT), arithmetic_version=9))


def test_unknown_model_is_named() -> None:
    with pytest.raises(UnknownModelError, match="'gone', id 0909090909090909"):
        decompress(with_header(compress(TEXT), model_id=b"\x09" * 8, model_name="gone"))


def test_raw_blocks_need_no_model() -> None:
    assert decompress(with_header(compress(NOISE), model_id=b"\x09" * 8, model_name="gone")) == NOISE


def test_learning_is_refused_where_no_preset_learns(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    archive = compress(TEXT, preset="best")
    monkeypatch.setattr(toy.module, "PRESETS", {"default": PRESETS["default"]})
    with pytest.raises(FormatError, match="learning"):
        decompress(archive)


def test_experts_and_parameters_are_refused() -> None:
    with pytest.raises(FormatError, match="experts"):
        decompress(with_header(compress(TEXT), flags=2))
    with pytest.raises(FormatError, match="parameter 4"):
        decompress(with_header(compress(TEXT), parameters={4: 0}))


# --- damage ----------------------------------------------------------------------------------------------

SMALL = b"abab" * 20 + NOISE[:48] + b"cdcdcdcd" * 8


@pytest.fixture(scope="module", params=list(PRESETS))
def small(request: pytest.FixtureRequest, toy_module: Toy) -> bytes:
    """Two frames of coded and raw blocks."""
    first, second = (compress(data, preset=request.param, block_size=64) for data in (SMALL, SMALL[::-1]))
    kinds = [type(part) for part in parts(first)]
    assert CodedBlock in kinds and RawBlock in kinds
    return first + second


def test_every_truncation_is_an_error_but_between_frames(small: bytes) -> None:
    between = end_of_first_frame(small)
    for size in range(len(small)):
        sink = io.BytesIO()
        if size == between:
            assert decompress(small[:size]) == SMALL
            continue
        with pytest.raises(RhnzipError) as caught:
            decompress_stream(io.BytesIO(small[:size]), sink)
        assert (SMALL + SMALL[::-1]).startswith(sink.getvalue())
        if isinstance(caught.value, CorruptError):
            assert caught.value.recovered == len(sink.getvalue())
        with pytest.raises(RhnzipError):
            inspect_stream(io.BytesIO(small[:size]))


def test_every_change_of_a_byte_is_an_error(small: bytes) -> None:
    for position in range(len(small)):
        for change in (0x01, 0x08, 0x10, 0x80, 0xFF):
            damaged = bytearray(small)
            damaged[position] ^= change
            sink = io.BytesIO()
            with pytest.raises(RhnzipError) as caught:
                decompress_stream(io.BytesIO(damaged), sink)
            assert (SMALL + SMALL[::-1]).startswith(sink.getvalue())
            if isinstance(caught.value, CorruptError):
                assert caught.value.recovered == len(sink.getvalue())
            with pytest.raises(RhnzipError):
                streams.test_stream(io.BytesIO(damaged))
            with pytest.raises(RhnzipError):
                inspect_stream(io.BytesIO(damaged))


def test_trailing_garbage_is_an_error_after_all_is_recovered() -> None:
    sink = io.BytesIO()
    with pytest.raises(CorruptError, match=f"the first {len(TEXT):,} bytes") as caught:
        decompress_stream(io.BytesIO(compress(TEXT) + b"\n"), sink)
    assert caught.value.recovered == len(TEXT)
    assert sink.getvalue() == TEXT


def test_missing_end_says_how_much_was_recovered() -> None:
    end = parts(compress(TEXT))[-1]
    with pytest.raises(CorruptError, match="cut short") as caught:
        decompress(compress(TEXT)[: -len(end.pack())])
    assert caught.value.recovered == len(TEXT)


def test_lost_repeated_and_swapped_blocks_are_noticed() -> None:
    archive = compress(TEXT[:1536])
    pieces, start, reader = [], 0, ArchiveReader(io.BytesIO(archive))
    for _ in reader:
        pieces.append(archive[start : reader.position])
        start = reader.position
    header, one, two, three, end = pieces
    assert decompress(b"".join(pieces)) == TEXT[:1536]
    for order in ([one, three], [one, two, two, three], [two, one, three]):
        with pytest.raises(CorruptError):
            decompress(b"".join([header, *order, end]))


def forged(raw: bytes, claimed: bytes) -> bytes:
    """Return an archive whose block decodes to `raw`, but whose checksums are those of `claimed`."""
    payload = ToyCodec(MODELS[0], learning=False).encode(raw, 1, 0)
    block = CodedBlock.of(claimed, payload, 1, 0, True)
    good = compress(claimed)
    header, end = parts(good)[0], parts(good)[-1]
    return header.pack() + block.pack() + payload + end.pack()


def test_wrong_bytes_are_never_written() -> None:
    assert decompress(forged(TEXT[:100], TEXT[:100])) == TEXT[:100]
    for claimed in (TEXT[1:101], TEXT[1:100], TEXT[:101]):
        sink = io.BytesIO()
        with pytest.raises(CorruptError, match="checksums differ") as caught:
            decompress_stream(io.BytesIO(forged(TEXT[:100], claimed)), sink)
        assert (caught.value.recovered, sink.getvalue()) == (0, b"")
        assert len(inspect_stream(io.BytesIO(forged(TEXT[:100], claimed)))) == 1  # only decoding can tell


def fail_at(monkeypatch: pytest.MonkeyPatch, block: int, error: BaseException) -> None:
    """Make decoding the given block raise."""
    calls = iter(range(1000))

    def fault() -> None:
        if next(calls) == block:
            raise error

    monkeypatch.setattr(ToyCodec, "fault", staticmethod(fault))


@pytest.mark.parametrize("error", [CorruptError("what"), RhnzipError("what")])
def test_codec_errors_say_how_much_was_recovered(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = compress(TEXT)
    fail_at(monkeypatch, 2, error)
    with pytest.raises(CorruptError, match="what") as caught:
        decompress(archive)
    assert caught.value.recovered == 1024


@pytest.mark.parametrize(
    "error", [BackendError("what"), LimitError("what"), MemoryError("what"), KeyboardInterrupt("what")]
)
def test_errors_of_the_machine_pass(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = compress(TEXT)
    fail_at(monkeypatch, 2, error)
    with pytest.raises(type(error), match="what"):
        decompress(archive)


def test_errors_of_files_pass() -> None:
    class Full(io.BytesIO):
        def write(self, _data: bytes) -> int:
            raise OSError("no space")

    class Blocked(io.RawIOBase):
        def write(self, _data: bytes) -> None:
            return None

    archive = compress(TEXT)
    for run, data in ((compress_stream, TEXT), (decompress_stream, archive)):
        with pytest.raises(OSError, match="no space"):
            run(io.BytesIO(data), Full())
        with pytest.raises(BlockingIOError):
            run(io.BytesIO(data), Blocked())


# --- summaries, progress, inspection ---------------------------------------------------------------------


@PRESET_NAMES
def test_summaries_agree(preset: str) -> None:
    sink = io.BytesIO()
    packed = compress_stream(io.BytesIO(MIXED), sink, preset=preset)
    archive = sink.getvalue()
    assert packed == Summary(len(MIXED), len(archive), frames=1, blocks=-(-len(MIXED) // 512))
    assert decompress_stream(io.BytesIO(archive), io.BytesIO()) == packed
    assert streams.test_stream(io.BytesIO(archive)) == packed
    twice = Summary(*(2 * value for value in asdict(packed).values()))
    assert streams.test_stream(io.BytesIO(archive * 2)) == twice


def test_figures_of_an_empty_summary() -> None:
    summary = compress_stream(io.BytesIO(b""), io.BytesIO())
    assert (summary.ratio, summary.bpc) == (0, float("inf"))


def test_progress_grows_to_the_totals() -> None:
    runs: list[tuple[Callable[..., Summary], bytes]] = [
        (lambda source, progress: compress_stream(source, io.BytesIO(), progress=progress), MIXED),
        (
            lambda source, progress: decompress_stream(source, io.BytesIO(), progress=progress),
            compress(MIXED),
        ),
        (streams.test_stream, compress(MIXED)),
    ]
    for run, data in runs:
        told: list[tuple[int, int]] = []

        def progress(raw: int, packed: int, told: list[tuple[int, int]] = told) -> None:
            told.append((raw, packed))

        summary = run(io.BytesIO(data), progress=progress)
        assert told == sorted(told)
        assert all(earlier[1] <= later[1] for earlier, later in zip(told, told[1:], strict=False))
        assert told[-1] == (summary.raw_bytes, summary.packed_bytes)
        packed_at = dict(told)  # told inside a block, too
        assert packed_at[256] < packed_at[512]


def test_inspection() -> None:
    archive = compress(MIXED, preset="best", model="other") + compress(b"")
    first, second = inspect_stream(Trickle(archive))
    assert second.offset == first.packed_bytes == end_of_first_frame(archive)
    assert second.packed_bytes == len(archive) - second.offset
    assert (first.raw_bytes, second.raw_bytes) == (len(MIXED), 0)
    assert (first.format_version, first.arithmetic_version, first.parameters) == (1, 7, {1: 0x3F800000})
    assert (first.preset, first.learning, first.experts) == ("best", True, False)
    assert (first.model_id, first.model_name) == ("02" * 8, "other")
    assert (second.preset, second.learning, second.blocks) == ("default", False, ())
    assert sum(block.raw_bytes for block in first.blocks) == len(MIXED)
    headers = [part for part in parts(archive) if isinstance(part, CodedBlock | RawBlock)]
    position = len(parts(archive)[0].pack())
    for block, header in zip(first.blocks, headers, strict=True):
        size = len(header.pack()) + header.payload_length
        assert (block.offset, block.packed_bytes, block.raw_bytes) == (position, size, header.raw_length)
        if isinstance(header, CodedBlock):
            seen = (block.kind, block.lanes, block.segment, block.reset)
            assert seen == ("coded", header.lanes, header.segment, header.reset)
        else:
            assert (block.kind, block.lanes, block.segment, block.reset) == ("raw", 0, 0, False)
        position += size


def test_inspection_needs_no_coding(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = with_header(
        compress(TEXT), model_id=b"\x09" * 8, flags=2, arithmetic_version=99, preset=77, parameters={4: 1}
    )
    monkeypatch.setitem(sys.modules, "rhnzip.coding", None)
    monkeypatch.delattr(rhnzip, "coding")
    (frame,) = inspect_stream(io.BytesIO(archive))
    assert (frame.arithmetic_version, frame.preset, frame.experts, frame.parameters) == (
        99,
        "77",
        True,
        {4: 1},
    )


def test_random_block_is_stored_untried_and_later_blocks_still_build_on_earlier_ones(toy: Toy) -> None:
    data = b"abcd" * 128 + b"random" + bytes(506) + b"abcd" * 128
    packed = streams.compress(data, preset="best")
    kinds = [(block.kind, block.reset) for block in streams.inspect_stream(io.BytesIO(packed))[0].blocks]
    assert kinds == [("coded", True), ("raw", False), ("coded", False)]
    assert streams.decompress(packed) == data
