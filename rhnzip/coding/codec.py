"""Blocks of bytes to payloads and back: lanes, predictor, range coder.

Legend: B lanes, T steps, N bytes of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rhnzip.adaptation import LearningPredictor
from rhnzip.adaptation.replay import HISTORY, Replay
from rhnzip.coding.coder import Decoder, Encoder
from rhnzip.coding.predictor import FrozenPredictor, MeanPredictor, Predictor, lane_groups
from rhnzip.coding.workers import Workers, available_threads
from rhnzip.errors import CorruptError, LimitError
from rhnzip.exact.backend import Backend, Settings
from rhnzip.exact.weights import ExactWeights
from rhnzip.models.cell import Cell

Progress = Callable[[int, int], None]
"""Is told the bytes done of a block, raw and coded."""

FROZEN_GROUP = 16
"""Fewest lanes worth a thread of their own: below, products stream the same weights for little work."""

MAX_MEMORY = 4 << 30
"""Most bytes that a block may need; a header that asks for more is refused before they are taken."""

LEARNING_GROUP = 8
"""The same when learning. Every thread pays for its own pass through the tape, and streams all weights: two
groups of 4 lanes are slower than one of 8. The update is spread over all threads in any case."""


def row_bytes(cell: Cell, weights: ExactWeights) -> int:
    """Bytes that one row (a lane's step) of a segment keeps for its gradients, at most.

    For each product its int8 input, int32 sums and float32 gradient; and the values between products, float32
    and int8, with their gradients: in a network of general primitives up to 13 for each output of a product.
    """
    shapes = [linear.weight.shape for linear in weights.linears.values()]
    between = 120 if cell.general else 0
    return sum(10 * inner + (8 + between) * columns for inner, columns in shapes)


class BlockCodec(Protocol):
    """Encodes and decodes blocks, carrying from one to the next whatever the preset lets it learn."""

    learning: bool

    def reset(self) -> None:
        """Forget all that was learned."""
        ...

    def encode(self, raw: bytes, lanes: int, segment: int, progress: Progress | None = None) -> bytes:
        """Code a block."""
        ...

    def decode(
        self, payload: bytes, length: int, lanes: int, segment: int, progress: Progress | None = None
    ) -> bytes:
        """Undo `encode`. Raises CorruptError where the payload cannot be what an encoder wrote."""
        ...


class Lanes:
    """Where byte t of lane b stands in a block: lanes are contiguous, the first N mod B are one byte longer.

    >>> lanes = Lanes(7, 3)
    >>> lanes.steps, lanes.active(0), lanes.active(2)
    (3, 3, 1)
    """

    def __init__(self, length: int, lanes: int) -> None:
        """Lay `length` bytes out in `lanes` lanes, 1 <= lanes <= length."""
        if not 1 <= lanes <= length:
            raise LimitError(f"{lanes} lanes for a block of {length} bytes")
        self.length, self.lanes = length, lanes
        self._short, self._longer = divmod(length, lanes)
        self.steps = self._short + (self._longer > 0)

    def active(self, step: int) -> int:
        """Lanes that have a byte at this step: all, but at the last only the longer ones."""
        return self.lanes if step < self._short else self._longer

    def split(self, raw: bytes) -> NDArray[np.int32]:
        """Bytes by step and lane, shape (T, B); the last row is filled up with zeros."""
        data = np.frombuffer(raw, np.uint8)
        table = np.zeros((self.lanes, self.steps), np.int32)
        cut = self._longer * self.steps
        table[: self._longer] = data[:cut].reshape(self._longer, self.steps)
        table[self._longer :, : self._short] = data[cut:].reshape(self.lanes - self._longer, self._short)
        return np.ascontiguousarray(table.T)

    def join(self, table: NDArray[np.uint8]) -> bytes:
        """Undo `split`."""
        by_lane = table.T
        longer = np.ascontiguousarray(by_lane[: self._longer]).tobytes()
        return longer + np.ascontiguousarray(by_lane[self._longer :, : self._short]).tobytes()


def looks_random(raw: bytes) -> bool:
    """Whether a block's bytes are so evenly spread that it is stored untried: encrypted or compressed.

    Pearson's statistic against equal shares, chi^2 = (256 sum c^2 - n^2) / n, is about 255 for random bytes;
    an order-0 entropy 0.01 bits below 8 adds n / 72 to it. Integers only: an archive must not depend on a
    machine's logarithm.

    >>> looks_random(bytes(range(256)) * 16), looks_random(b"even text has a shape " * 200)
    (True, False)
    """
    size = len(raw)
    if size < 4096:
        return False
    counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
    squares = sum(int(count) ** 2 for count in counts)
    return 72 * (256 * squares - size * size) < size * (72 * 400 + size)


class _NetworkCodec:
    """Both directions of coding, the same but for who knows the bytes first."""

    learning: bool

    def __init__(self, backend: Backend, threads: int | None) -> None:
        self.threads = (threads or available_threads()) if backend.parallel else 1

    def reset(self) -> None:
        """Forget all that was learned."""
        raise NotImplementedError

    def _predictor(self, lanes: int, segment: int, workers: Workers) -> Predictor:
        raise NotImplementedError

    def _keep(self, raw: bytes) -> None:
        """Take note of a block that was coded."""

    def encode(self, raw: bytes, lanes: int, segment: int, progress: Progress | None = None) -> bytes:
        """Code a block."""
        layout = Lanes(len(raw), lanes)
        table, encoder = layout.split(raw), Encoder()
        with Workers(self.threads) as workers:
            predictor = self._predictor(lanes, segment, workers)
            for step in range(layout.steps):
                active = layout.active(step)
                symbols = table[step, :active]
                encoder.encode(symbols, predictor.counts()[:active])
                predictor.update(symbols)
                if progress:
                    progress(min(len(raw), (step + 1) * lanes), encoder.size())
        self._keep(raw)
        return encoder.finish()

    def decode(
        self, payload: bytes, length: int, lanes: int, segment: int, progress: Progress | None = None
    ) -> bytes:
        """Undo `encode`."""
        layout, decoder = Lanes(length, lanes), Decoder(payload)
        table = np.zeros((layout.steps, lanes), np.uint8)
        with Workers(self.threads) as workers:
            predictor = self._predictor(lanes, segment, workers)
            for step in range(layout.steps):
                active = layout.active(step)
                symbols = decoder.decode(predictor.counts()[:active])
                table[step, :active] = symbols
                predictor.update(symbols)
                if progress:
                    done = min(length, (step + 1) * lanes)
                    progress(done, len(payload) * done // length)
        raw = layout.join(table)
        self._keep(raw)
        return raw


class FrozenCodec(_NetworkCodec):
    """A network that does not learn: every block stands alone."""

    learning = False

    def __init__(
        self, cell: Cell, weights: ExactWeights, backend: Backend, threads: int | None = None
    ) -> None:
        """Prepare weights; `threads` None takes all processors this process may use."""
        super().__init__(backend, threads)
        self._cell = cell
        self._prepared = backend.prepare(weights)

    def reset(self) -> None:
        """Nothing is ever learned."""

    def _predictor(self, lanes: int, segment: int, workers: Workers) -> Predictor:
        if segment:
            raise CorruptError(f"a frozen block with a learning segment of {segment} steps")
        parts = lane_groups(lanes, self.threads, FROZEN_GROUP)
        return FrozenPredictor(self._cell, self._prepared, parts, workers.run)


class LearningCodec(_NetworkCodec):
    """A network that learns from every segment it has coded, through the blocks of a frame."""

    learning = True

    def __init__(
        self,
        cell: Cell,
        weights: ExactWeights,
        backend: Backend,
        settings: Settings,
        threads: int | None = None,
    ) -> None:
        """Prepare weights; `threads` None takes all processors this process may use."""
        super().__init__(backend, threads)
        self._cell = cell
        self._learner = backend.learner(weights, cell.inputs(), settings)
        self._settings = settings
        self._history = b""
        self._row_bytes = row_bytes(cell, weights)

    def reset(self) -> None:
        """Forget all that was learned."""
        self._learner.reset()
        self._history = b""

    def _keep(self, raw: bytes) -> None:
        if self._settings.replay:
            self._history = (self._history + raw)[-HISTORY:]

    def _predictor(self, lanes: int, segment: int, workers: Workers) -> Predictor:
        if not segment:
            raise CorruptError("a learning block without a segment length")
        replay = None
        if replayed := self._settings.replay:
            replay = Replay(replayed, self._settings.replay_share, segment, self._history)
            lanes += replayed
        if lanes * segment * self._row_bytes > MAX_MEMORY:
            needed = lanes * segment * self._row_bytes / (1 << 30)
            raise LimitError(
                f"{lanes} lanes x {segment} steps of this model would take {needed:.1f} GiB of memory"
            )
        parts = lane_groups(lanes, self.threads, LEARNING_GROUP)
        return LearningPredictor(self._cell, self._learner, parts, segment, workers.run, self.threads, replay)


class EnsembleCodec(_NetworkCodec):
    """Several networks that predict together, all frozen or all learning."""

    def __init__(
        self, members: list[FrozenCodec | LearningCodec], backend: Backend, threads: int | None
    ) -> None:
        """Members code nothing by themselves."""
        super().__init__(backend, threads)
        self._members = members
        self.learning = members[0].learning

    def reset(self) -> None:
        """Forget all that was learned."""
        for member in self._members:
            member.reset()

    def _keep(self, raw: bytes) -> None:
        for member in self._members:
            member._keep(raw)

    def _predictor(self, lanes: int, segment: int, workers: Workers) -> Predictor:
        return MeanPredictor([member._predictor(lanes, segment, workers) for member in self._members])
