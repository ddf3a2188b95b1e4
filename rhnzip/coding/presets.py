"""Presets, and the one rule by which a block's length picks its lanes.

More lanes are faster (products over many rows at once), fewer compress better (every lane starts knowing nothing).
The header of each block stores the choice, so a decoder never needs this rule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockShape:
    """How a block is coded: `lanes` step together; `segment` steps between updates when learning, else 0."""

    lanes: int
    segment: int = 0


@dataclass(frozen=True)
class Preset:
    """A point between speed and size.

    Attributes:
        name: as the command line spells it.
        number: as the frame header stores it.
        learning: whether the network learns while it codes.
        block_size: bytes per block; memory and the wait for a decoder's first byte grow with it.
        lane_bytes: bytes per lane aimed at.
        max_lanes: most lanes in a block.
        description: for `--help`.
    """

    name: str
    number: int
    learning: bool
    block_size: int
    lane_bytes: int
    max_lanes: int
    description: str

    def shape(self, length: int) -> BlockShape:
        """Lanes for a block of `length` bytes.

        >>> PRESETS["fast"].shape(2000).lanes, PRESETS["fast"].shape(1 << 20).lanes
        (1, 128)
        """
        return BlockShape(max(1, min(self.max_lanes, round(length / self.lane_bytes))))


PRESETS = {
    "fast": Preset(
        "fast", 0, False, 1 << 21, 8192, 256, "frozen network: hundreds of KB/s; independent blocks, random access"
    )
}
