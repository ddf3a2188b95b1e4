"""Presets, and the one rule by which a block's length picks its lanes.

More lanes are faster (products over many rows at once), fewer compress better (every lane starts knowing
nothing). The header of each block stores the choice, so a decoder never needs this rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhnzip.adaptation import to_parameters
from rhnzip.errors import RhnzipError
from rhnzip.exact.backend import Settings
from rhnzip.models.scratch import PREFIX as SCRATCH


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
        block_size: bytes per block; memory and the wait for a decoder's first byte grow with it.
        lane_bytes: bytes per lane aimed at.
        max_lanes: most lanes in a block.
        segment: T, steps between updates of the network; 0 when it is frozen.
        settings: of the update; None when frozen.
        scratch_settings: of the update of a network that starts from nothing; None when frozen.
    """

    name: str
    number: int
    block_size: int
    lane_bytes: int
    max_lanes: int
    segment: int
    settings: Settings | None
    scratch_settings: Settings | None

    @property
    def learning(self) -> bool:
        """Whether the network learns while it codes."""
        return self.settings is not None

    def parameters(self, model_name: str) -> dict[int, int]:
        """Settings of the update as the frame header stores them.

        Raises:
            RhnzipError: a network that knows nothing, with a preset that learns nothing.
        """
        scratch = model_name.startswith(SCRATCH)
        settings = self.scratch_settings if scratch else self.settings
        if scratch and settings is None:
            raise RhnzipError(
                f"{model_name} knows nothing, and preset {self.name} learns nothing; choose another preset"
            )
        return to_parameters(settings) if settings else {}

    def shape(self, length: int) -> BlockShape:
        """Lanes for a block of `length` bytes.

        >>> PRESETS["fast"].shape(2000).lanes, PRESETS["fast"].shape(1 << 20).lanes
        (1, 128)
        """
        return BlockShape(max(1, min(self.max_lanes, round(length / self.lane_bytes))), self.segment)


_ALL = (
    Preset(
        name="fast",
        number=0,
        block_size=1 << 21,
        lane_bytes=8192,
        max_lanes=256,
        segment=0,
        settings=None,
        scratch_settings=None,
    ),
    Preset(
        name="default",
        number=1,
        block_size=1 << 20,
        lane_bytes=4096,
        max_lanes=8,
        segment=10,
        settings=Settings(rate=7e-5, boost=6.0, boost_updates=200.0, beta=0.999, decay=5e-4, floor=1e-2),
        scratch_settings=Settings(rate=5e-4, boost=3.0, boost_updates=1000.0, beta=0.999),
    ),
    Preset(
        name="best",
        number=2,
        block_size=1 << 20,
        lane_bytes=16384,
        max_lanes=2,
        segment=10,
        settings=Settings(rate=3e-5, boost=8.0, boost_updates=800.0, beta=0.999, decay=1.5e-4, floor=4e-3),
        scratch_settings=Settings(rate=5e-4, boost=3.0, boost_updates=2000.0, beta=0.999),
    ),
)
PRESETS = {preset.name: preset for preset in _ALL}
