"""The predictor that learns: same interface as the frozen one, one optimiser step per segment.

A segment is T steps of all lanes. After its last step the gradients of its symbols flow back through it
(truncated BPTT, the state is carried on), and every weight takes one step, before the next symbol is
predicted: what `counts` returns at step t still depends on bytes at steps before t alone. A segment that the
block's end cuts short is not learned from.

Legend: B lanes, T steps of a segment, V symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhnzip.adaptation.replay import Replay
from rhnzip.exact.backend import Learner
from rhnzip.exact.constants import SYMBOLS
from rhnzip.models.cell import START_SYMBOL, Cell

Tasks = Sequence[Callable[[], None]]


class LearningPredictor:
    """A network over B lanes of one block; the learner it drives lives on from block to block."""

    def __init__(
        self,
        cell: Cell,
        learner: Learner,
        parts: list[slice],
        steps: int,
        run: Callable[[Tasks], None],
        threads: int,
        replay: Replay | None = None,
    ) -> None:
        """Start a block.

        Args:
            cell: the network's equations.
            learner: the weights that learn.
            parts: groups of lanes, each worked on by one thread; lanes that replay come last.
            steps: T, steps from one update to the next.
            run: runs tasks side by side and returns when all are done.
            threads: how many tasks to cut the update into.
            replay: what the lanes that replay read.
        """
        lanes = parts[-1].stop
        self._cell, self._parts, self._steps, self._run, self._threads = cell, parts, steps, run, threads
        self._segment = learner.open_segment(lanes, steps, parts)
        self._ops = self._segment.groups
        self._states: list[tuple[Any, ...]] = [
            tuple(ops.zeros(width) for width in cell.state_widths()) for ops in self._ops
        ]
        self._symbols = np.full(lanes, START_SYMBOL, np.int64)
        self._replay = replay
        self._learner = learner
        self._coded = lanes - (len(replay.shares) if replay else 0)
        self._shares = np.ones(lanes, np.float32)
        self._step = 0
        self._counts = np.empty((lanes, SYMBOLS), np.float32)
        groups = range(len(parts))
        self._forward_tasks = [lambda g=g: self._forward(g) for g in groups]
        self._backward_tasks = [lambda g=g: self._backward(g) for g in groups]

    def _learn(self, group: int) -> None:
        part = self._parts[group]
        self._ops[group].learn(self._symbols[part], self._shares[part])

    def _forward(self, group: int) -> None:
        ops, part = self._ops[group], self._parts[group]
        if self._step == 0:
            self._states[group] = ops.begin_segment(self._states[group])
        else:
            self._learn(group)
        ops.begin_step()
        state = self._cell.step(ops, ops.symbols(self._symbols[part]), self._states[group])
        self._states[group] = state
        self._counts[part] = self._cell.head(ops, state)

    def _backward(self, group: int) -> None:
        self._learn(group)
        self._ops[group].backward()

    def counts(self) -> NDArray[np.float32]:
        """Counts of every lane's next byte, shape (B, V), C-contiguous; valid until the next call."""
        if self._replay and self._step == 0:
            self._replay.begin(self._learner.updates + 1)
            self._symbols[self._coded :] = self._replay.symbols(0)
            self._shares[self._coded :] = self._replay.shares
        self._run(self._forward_tasks)
        return self._counts[: self._coded]

    def update(self, symbols: NDArray[np.int32]) -> None:
        """Tell the bytes that came, those of the first `len(symbols)` lanes; at a segment's end, learn."""
        active = len(symbols)
        self._symbols[:active] = symbols
        self._shares[active : self._coded] = 0
        self._step += 1
        if self._replay:
            self._replay.add(int(symbols[0]))
            self._symbols[self._coded :] = self._replay.symbols(self._step)
        if self._step == self._steps:
            self._run(self._backward_tasks)
            self._run(self._segment.update_tasks(self._threads))
            self._step = 0
