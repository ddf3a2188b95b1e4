"""What every cell offers; training, export and coding know a cell only through this.

A cell is written once, over the `ops` interface: `step` and `head` call the same primitives whether `ops` is
the float side (`exact.floating.FloatOps`, autograd) or an exact backend (`exact.backend.ExactOps`, integers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Generator, Tensor

START_SYMBOL = 0
"""The symbol before a lane's first. Text does not use byte 0: its row learns what a fresh start means."""

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Folded:
    """Parameters in the form the primitives use.

    Attributes:
        linears: weights by name, shape (K, N); int8 on the exact side, with one scale per output column.
        tables: row tables by name, shape (rows, N); a bias is a table of one row.
    """

    linears: dict[str, Tensor]
    tables: dict[str, Tensor]


@dataclass(frozen=True)
class FoldedShapes:
    """Shapes of what `Folded` holds."""

    linears: dict[str, tuple[int, ...]]
    tables: dict[str, tuple[int, ...]]


class Config(Protocol):
    """Frozen dataclass of a cell's sizes; `cell` names its kind in the registry."""

    @property
    def cell(self) -> str:
        """Registry name of the cell this configures."""
        ...


class Cell(Protocol):
    """One recurrent network from symbols to the logits of the next symbol."""

    config: Any
    general: bool
    """Whether it needs the general primitives, not highway layers alone."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        ...

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Draw initial parameters, float32."""
        ...

    def fold(self, parameters: Parameters) -> Folded:
        """Turn trained parameters into linear maps and row tables (differentiable)."""
        ...

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns, without computing anything."""
        ...

    def embed(
        self, parameters: Parameters, symbols: Tensor, symbol_mask: Tensor, input_mask: Tensor
    ) -> Tensor:
        """Input rows of a segment under input dropout; symbols (T, B) -> (T, B, N)."""
        ...

    def state_widths(self) -> tuple[int, ...]:
        """Widths of the float vectors that make up a lane's state; all start at zero."""
        ...

    def value_scales(self) -> dict[str, float | None]:
        """Static int8 scales by value name: q = round(scale * x). None: measured at export."""
        ...

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """Variational dropout masks by name: which rate of the recipe (`hidden`, `output`), and the width."""
        ...

    def inputs(self) -> dict[str, str]:
        """Which value each linear map reads, by name."""
        ...

    def step(self, ops: Any, symbols: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Advance all lanes by one symbol each; returns the new state."""
        ...

    def head(self, ops: Any, state: tuple[Any, ...]) -> Any:
        """Logits (float side) or counts (exact side) of the next symbol, (B, V)."""
        ...


def parameter_count(cell: Cell) -> int:
    """Number of trained parameters."""
    total = 0
    for shape in cell.shapes().values():
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return total
