"""LSTM networks: the papers' baselines (Mujika et al. 2017, section 5: stacked and sequential).

Stacked: layer n reads the output of layer n - 1 at the same step; the output layer reads the last.
Sequential: one state goes through all cells in a step, and only the first sees the symbol; what the last
leaves is the next step's.

With skip connections (Graves 2013, "Generating Sequences With Recurrent Neural Networks", section 2) stacked
cells all read the symbol, and the output layer reads all cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rhnzip.errors import ModelError
from rhnzip.models.blocks import Block, LSTMBlock
from rhnzip.models.blockwise import BlockNetwork


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes of an LSTM network.

    Attributes:
        units: H of every cell.
        layers: cells.
        sequential: one state through all cells in turn; else every cell has its own and reads the one below.
        skip: skip connections, of stacked cells; each then has a bias of its own.
        norm: layer norm of gates and cells.
        keep_hidden: zoneout, share of the new output.
        keep_cell: zoneout, share of the new cell state.
        embedding: E, width of the symbol embedding; folded away at export.
        vocabulary: V.
    """

    units: int
    layers: int = 1
    sequential: bool = False
    skip: bool = False
    norm: bool = True
    keep_hidden: float = 1.0
    keep_cell: float = 1.0
    embedding: int = 256
    vocabulary: int = 256
    cell: str = "lstm"


class LSTM(BlockNetwork):
    """Stacked or sequential LSTM over the `ops` primitives."""

    def __init__(self, config: LSTMConfig) -> None:
        """Lay out the cells.

        Raises:
            ModelError: skip connections between sequential cells.
        """
        if config.skip and config.sequential:
            raise ModelError("lstm: sequential cells share one state; skip connections are for stacked ones")
        keep, blocks = (config.keep_hidden, config.keep_cell), list[Block]()
        for n in range(config.layers):
            width = config.embedding if n == 0 else (0 if config.sequential else config.units)
            block = LSTMBlock(f"lstm.{n}", width, config.units, config.norm, *keep, own_bias=config.skip)
            blocks.append(replace(block, skip_width=config.embedding) if config.skip and n else block)
        reads = {} if config.sequential else {block.name: "hidden" for block in blocks[1:]}
        seen = config.layers if config.skip else 1
        super().__init__(config, blocks, reads, config.units * seen, readers=seen)

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """As other networks', but the output layer may read several cells."""
        return super().dropouts() | {"hidden": ("hidden", self.config.units)}

    def state_widths(self) -> tuple[int, ...]:
        """(h, c) of every cell, or of the one state."""
        return self.blocks[0].state_widths() * (1 if self.config.sequential else len(self.blocks))

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each."""
        rows = [self.symbol_rows(ops, symbols, n) for n in range(self._readers)]
        rows += [None] * (len(self.blocks) - len(rows))
        if self.config.sequential:
            for block, row in zip(self.blocks, rows, strict=True):
                state = block.step(ops, state, rows=row)
            return state
        after: tuple[Any, ...] = ()
        for n, block in enumerate(self.blocks):
            below = ops.dropout("hidden", after[-2]) if n else None
            after += block.step(ops, state[2 * n : 2 * n + 2], x=below, rows=rows[n])
        return after

    def head(self, ops: Any, state: tuple[Any, ...]) -> Any:
        """Next symbol's logits or counts from the last cell's output, or from all."""
        if self.config.skip:
            return self.output(ops, ops.quantise(ops.join(state[::2]), "hidden"))
        return self.output(ops, state[-2])
