"""The predictor: the object that encoder and decoder drive alike, one step for all lanes at a time.

    predictor.counts()         distribution of every lane's next byte
    predictor.update(symbols)  the bytes that came

It never holds the plaintext: what `counts` returns at step t depends on bytes at steps before t alone.

Legend: B lanes, V symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rhnzip.exact.backend import Prepared
from rhnzip.exact.constants import COUNT_TOTAL, SYMBOLS
from rhnzip.models.cell import START_SYMBOL, Cell

Tasks = Sequence[Callable[[], None]]


class Predictor(Protocol):
    """What both directions of coding drive."""

    def counts(self) -> NDArray[np.float32]:
        """Counts of every lane's next byte, (B, V)."""
        ...

    def update(self, symbols: NDArray[np.int32]) -> None:
        """Tell the bytes that came to the first `len(symbols)` lanes."""
        ...


def lane_groups(lanes: int, threads: int, smallest: int) -> list[slice]:
    """Split lanes into at most `threads` groups of about equal size, each of at least `smallest` or alone.

    >>> lane_groups(40, 2, 16)
    [slice(0, 20, None), slice(20, 40, None)]
    """
    groups = max(1, min(threads, lanes // smallest))
    bounds = [lanes * g // groups for g in range(groups + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


class FrozenPredictor:
    """A frozen network over B lanes, each from a zero state and the start symbol."""

    def __init__(
        self, cell: Cell, prepared: Prepared, parts: list[slice], run: Callable[[Tasks], None]
    ) -> None:
        """One workspace for each of `parts`, groups of lanes; `run` runs their tasks side by side."""
        lanes = parts[-1].stop
        self._cell, self._run, self._parts = cell, run, parts
        self._ops = [prepared.open(part.stop - part.start) for part in parts]
        self._states: list[tuple[Any, ...]] = [
            tuple(ops.zeros(width) for width in cell.state_widths()) for ops in self._ops
        ]
        self._symbols = np.full(lanes, START_SYMBOL, np.int64)
        self._counts = np.empty((lanes, SYMBOLS), np.float32)
        self._tasks = [lambda g=g: self._step(g) for g in range(len(parts))]

    def _step(self, group: int) -> None:
        ops, part = self._ops[group], self._parts[group]
        ops.begin_step()
        state = self._cell.step(ops, ops.symbols(self._symbols[part]), self._states[group])
        self._states[group] = state
        self._counts[part] = self._cell.head(ops, state)

    def counts(self) -> NDArray[np.float32]:
        """Counts of every lane's next byte, shape (B, V), C-contiguous; valid until the next call."""
        self._run(self._tasks)
        return self._counts

    def update(self, symbols: NDArray[np.int32]) -> None:
        """Tell the bytes that came to the first `len(symbols)` lanes (shorter lanes end a step early)."""
        self._symbols[: len(symbols)] = symbols


class MeanPredictor:
    """An ensemble: the mean of its members' counts; each of them learns as if it were alone."""

    def __init__(self, members: list[Predictor]) -> None:
        """Members predict for the same lanes."""
        self._members = members

    def counts(self) -> NDArray[np.float32]:
        """Floor of the mean of the counts; what is left of the total goes to the first of the largest."""
        total = np.zeros((1, 1), np.int64)
        for member in self._members:
            total = total + member.counts().astype(np.int64)
        mean = total // len(self._members)
        lanes = np.arange(len(mean))
        mean[lanes, np.argmax(total, axis=1)] += COUNT_TOTAL - mean.sum(axis=1)
        return mean.astype(np.float32)

    def update(self, symbols: NDArray[np.int32]) -> None:
        """Tell all members."""
        for member in self._members:
            member.update(symbols)
