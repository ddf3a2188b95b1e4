"""Fast-slow RNN (Mujika et al. 2017, "Fast-Slow Recurrent Neural Networks", eqs. 1-5).

In a step the fast state goes through k fast cells; the slow cell sits between the first two:

    F1(symbol, s_F) -> S(output of F1, s_S) -> F2(output of S, s_F) -> F3..Fk(no input, s_F) -> output layer

Any building block can be the cell; as published it is an LSTM with layer norm and zoneout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rhnzip.errors import ModelError
from rhnzip.models.blocks import Block, HighwayBlock, LSTMBlock
from rhnzip.models.blockwise import BlockNetwork


@dataclass(frozen=True)
class FSRNNConfig:
    """Sizes of a fast-slow network.

    Attributes:
        fast_units: H of the fast cells.
        slow_units: H of the slow cell.
        fast_cells: k, at least 2.
        fast: the fast cells' kind, `lstm` or `rhn`.
        slow: the slow cell's kind.
        depth: highway layers of a cell of kind `rhn`.
        norm: layer norm of gates and cells of kind `lstm`.
        keep_hidden: zoneout, share of the new output (`lstm`).
        keep_cell: zoneout, share of the new cell state (`lstm`).
        embedding: E, width of the symbol embedding; folded away at export.
        vocabulary: V.
    """

    fast_units: int
    slow_units: int
    fast_cells: int = 2
    fast: str = "lstm"
    slow: str = "lstm"
    depth: int = 2
    norm: bool = True
    keep_hidden: float = 1.0
    keep_cell: float = 1.0
    embedding: int = 256
    vocabulary: int = 256
    cell: str = "fsrnn"


class FSRNN(BlockNetwork):
    """Fast-slow network over the `ops` primitives."""

    def __init__(self, config: FSRNNConfig) -> None:
        """Lay out the cells.

        Raises:
            ModelError: fewer than two fast cells, or an unknown kind of cell.
        """
        if config.fast_cells < 2:
            raise ModelError("fsrnn: fast_cells must be at least 2")

        def block(name: str, kind: str, width: int, units: int) -> Block:
            if kind == "lstm":
                return LSTMBlock(name, width, units, config.norm, config.keep_hidden, config.keep_cell)
            if kind == "rhn":
                return HighwayBlock(name, width, units, config.depth)
            raise ModelError(f"fsrnn: unknown cell {kind!r}; there are: lstm, rhn")

        widths = [config.embedding, config.slow_units] + [0] * (config.fast_cells - 2)
        self.fast = [
            block(f"fast.{n}", config.fast, width, config.fast_units) for n, width in enumerate(widths)
        ]
        self.slow = block("slow", config.slow, config.fast_units, config.slow_units)
        reads = {self.fast[1].name: "hidden", "slow": "hidden"}
        super().__init__(config, [*self.fast, self.slow], reads, config.fast_units)
        self._split = len(self.fast[0].state_widths())

    def state_widths(self) -> tuple[int, ...]:
        """The fast state, then the slow one."""
        return self.fast[0].state_widths() + self.slow.state_widths()

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """Masks for what the slow cell reads, what the second fast cell reads of it, and the output."""
        return super().dropouts() | {"slow": ("hidden", self.config.slow_units)}

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each."""
        fast, slow = state[: self._split], state[self._split :]
        fast = self.fast[0].step(ops, fast, rows=self.symbol_rows(ops, symbols))
        slow = self.slow.step(ops, slow, x=ops.dropout("hidden", fast[0]))
        fast = self.fast[1].step(ops, fast, x=ops.dropout("slow", slow[0]))
        for block in self.fast[2:]:
            fast = block.step(ops, fast)
        return fast + slow

    def head(self, ops: Any, state: tuple[Any, ...]) -> Any:
        """Next symbol's logits or counts from the last fast cell's output."""
        return self.output(ops, state[0])
