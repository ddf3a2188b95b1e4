"""Lanes that read again what was coded before, beside the lanes that code.

A network that starts from nothing learns more from a text than one reading of it gives: its decoder knows all
bytes before this one, so it can read them again as it goes (experience replay; Lin 1992, "Self-improving
reactive agents"). The text known at a segment's start is what earlier blocks held, as far back as HISTORY,
and what lane 0 of this one has so far. Each replaying lane reads stretches of SPAN bytes, drawn by the
integer generator, one segment at a time.

Legend: R lanes that replay, T steps of a segment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rhnzip.exact.random import random_bits

SPAN = 2048
"""Bytes of a stretch."""

HISTORY = 1 << 22
"""Bytes of earlier blocks that can be read again."""


class Replay:
    """Where the replaying lanes of one block stand."""

    def __init__(self, lanes: int, share: float, steps: int, history: bytes) -> None:
        """Start a block that follows `history`; `steps` is T."""
        self._share, self._steps = np.float32(share), steps
        self._text = bytearray(history[-HISTORY:])
        self._position = np.zeros(lanes, np.int64)
        self._end = np.zeros(lanes, np.int64)
        self._segment = np.zeros((lanes, steps + 1), np.int64)
        self.shares = np.zeros(lanes, np.float32)
        """Shares of the lanes' gradients in this segment: 0 where nothing can be read yet."""

    def add(self, symbol: int) -> None:
        """Tell a byte of lane 0."""
        self._text.append(symbol)

    def begin(self, update: int) -> None:
        """Start the segment before update number `update`, from 1: choose what every lane reads."""
        known, lanes, length = len(self._text), len(self._position), self._steps + 1
        draws: NDArray[np.uint64] | None = None
        for lane in range(lanes):
            if self._position[lane] + length > min(self._end[lane], known):
                draws = random_bits(f"replay {update}", lanes) if draws is None else draws
                self._position[lane] = int(draws[lane]) % max(1, known - SPAN)
                self._end[lane] = self._position[lane] + max(SPAN, length)
            start = int(self._position[lane])
            readable = start + length <= known
            self.shares[lane] = self._share if readable else 0
            self._segment[lane] = list(self._text[start : start + length]) if readable else 0
        self._position += self._steps

    def symbols(self, step: int) -> NDArray[np.int64]:
        """What the lanes read at a step of the segment, and are to predict at the one before, shape (R,)."""
        return self._segment[:, step]
