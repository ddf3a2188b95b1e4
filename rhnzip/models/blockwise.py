"""What networks of building blocks share: embedding, output layer, and the bookkeeping over their blocks.

Legend: V symbols, E embedding width, H units of the block that the output layer reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from rhnzip.errors import ModelError
from rhnzip.models.blocks import Block, joined, joined_shapes, orthogonal
from rhnzip.models.cell import Folded, FoldedShapes, Parameters


class BlockNetwork:
    """A network of blocks, the first or all of which read the symbol; `step` is the subclass's own.

    `reads` gives the value scale that each block's input has, by block name: "" for a table or no input.
    """

    general = True

    def __init__(
        self, config: Any, blocks: list[Block], reads: dict[str, str], read_units: int, readers: int = 1
    ) -> None:
        """Keep the sizes; the output layer reads `read_units` columns, the first `readers` blocks symbols."""
        self.config, self.blocks, self._reads, self._read_units = config, blocks, reads, read_units
        self._readers = readers

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained parameters by name."""
        vocabulary = self.config.vocabulary
        shapes: dict[str, tuple[int, ...]] = {"embedding": (vocabulary, self.config.embedding)}
        for block in self.blocks:
            shapes |= block.shapes()
        return shapes | {"output": (self._read_units, vocabulary), "output_bias": (vocabulary,)}

    def initial(self, generator: Generator) -> dict[str, Tensor]:
        """Orthogonal embedding and output layer; blocks draw their own."""
        shapes = self.shapes()
        parameters = {"embedding": orthogonal(shapes["embedding"], generator)}
        for block in self.blocks:
            parameters |= block.initial(generator)
        parameters["output"] = orthogonal(shapes["output"], generator)
        parameters["output_bias"] = torch.zeros(shapes["output_bias"])
        return parameters

    def fold(self, parameters: Parameters) -> Folded:
        """Embedding, input weights and bias of a block that reads the symbol become one table of V rows."""
        embedding = parameters["embedding"]
        parts = [block.fold(parameters, embedding) for block in self.blocks[: self._readers]]
        parts += [block.fold(parameters) for block in self.blocks[self._readers :]]
        output_bias = parameters["output_bias"].unsqueeze(0)
        return joined([*parts, Folded({"output": parameters["output"]}, {"output_bias": output_bias})])

    def folded_shapes(self) -> FoldedShapes:
        """Shapes of what `fold` returns."""
        vocabulary = self.config.vocabulary
        parts = [block.folded_shapes(vocabulary) for block in self.blocks[: self._readers]]
        parts += [block.folded_shapes() for block in self.blocks[self._readers :]]
        output = FoldedShapes({"output": (self._read_units, vocabulary)}, {"output_bias": (1, vocabulary)})
        return joined_shapes([*parts, output])

    def embed(
        self, parameters: Parameters, symbols: Tensor, symbol_mask: Tensor, input_mask: Tensor
    ) -> Tensor:
        """Input rows of a segment under input dropout; shapes as in `RHN.embed`.

        Raises:
            ModelError: several blocks read the symbol.
        """
        if self._readers > 1:
            raise ModelError("a network with skip connections trains without dropout of its input")
        first = self.blocks[0].name
        whole = symbol_mask.gather(1, symbols.t()).t().unsqueeze(-1)
        x = parameters["embedding"][symbols] * whole * input_mask
        zero = torch.zeros_like(parameters["embedding"][:1])
        bias = self.blocks[0].fold(parameters, zero).tables[f"{first}.symbols"]
        return x @ parameters[f"{first}.input"] + bias

    def state_widths(self) -> tuple[int, ...]:
        """Widths of all blocks' states, in order."""
        return tuple(width for block in self.blocks for width in block.state_widths())

    def value_scales(self) -> dict[str, float | None]:
        """Outputs of LSTM and coupled highway layers are bounded by 1."""
        return {"hidden": 127.0}

    def dropouts(self) -> dict[str, tuple[str, int]]:
        """One mask for what blocks read of each other, one before the output layer."""
        return {name: (name, self._read_units) for name in ("hidden", "output")}

    def inputs(self) -> dict[str, str]:
        """Which value each linear map reads."""
        reads = {"output": "hidden"}
        for block in self.blocks:
            reads |= block.inputs(self._reads.get(block.name, ""))
        return reads

    def symbol_rows(self, ops: Any, symbols: Any, block: int = 0) -> Any:
        """Rows of a block's table."""
        return ops.rows(f"{self.blocks[block].name}.symbols", symbols)

    def output(self, ops: Any, h: Any) -> Any:
        """Logits or counts from a block's output."""
        return ops.output(ops.linear("output", ops.dropout("output", h)), ops.rows("output_bias"))
