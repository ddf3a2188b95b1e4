"""Presets, and the one rule by which a block's length picks its lanes.

More lanes are faster (products over many rows at once), fewer compress better (every lane starts knowing
nothing). The header of each block stores the choice, so a decoder never needs this rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhnzip.adaptation import to_parameters
from rhnzip.errors import RhnzipError
from rhnzip.exact.backend import Settings
from rhnzip.models.ensemble import SEPARATOR
from rhnzip.models.scratch import PREFIX as SCRATCH


@dataclass(frozen=True)
class BlockShape:
    """How a block is coded: `lanes` step together; `segment` steps between updates when learning, else 0."""

    lanes: int
    segment: int = 0


@dataclass(frozen=True)
class Mode:
    """How a preset uses one kind of model.

    Attributes:
        lane_bytes: bytes per lane aimed at.
        max_lanes: most lanes in a block.
        segment: T, steps between updates of the network; 0 when it is frozen.
        settings: of the update; None when frozen.
    """

    lane_bytes: int
    max_lanes: int
    segment: int = 0
    settings: Settings | None = None

    @property
    def parameters(self) -> dict[int, int]:
        """Settings of the update as the frame header stores them."""
        return to_parameters(self.settings) if self.settings else {}

    def shape(self, length: int) -> BlockShape:
        """Lanes for a block of `length` bytes.

        >>> fast = PRESETS["fast"].mode("rhn-4m")
        >>> fast.shape(2000).lanes, fast.shape(1 << 20).lanes
        (1, 128)
        """
        return BlockShape(max(1, min(self.max_lanes, round(length / self.lane_bytes))), self.segment)


@dataclass(frozen=True)
class Preset:
    """A point between speed and size.

    Attributes:
        name: as the command line spells it.
        number: as the frame header stores it.
        block_size: bytes per block; memory and the wait for a decoder's first byte grow with it.
        trained: for a trained model.
        scratch: for a network that starts from nothing; None where it would stay so.
    """

    name: str
    number: int
    block_size: int
    trained: Mode
    scratch: Mode | None

    @property
    def learning(self) -> bool:
        """Whether the network learns while it codes."""
        return self.trained.settings is not None

    def mode(self, model_name: str) -> Mode:
        """How to use the model of this name, or the ensemble: as trained if one of its members is.

        Raises:
            RhnzipError: a network that knows nothing, with a preset that learns nothing.
        """
        if not all(member.startswith(SCRATCH) for member in model_name.split(SEPARATOR)):
            return self.trained
        if self.scratch is None:
            raise RhnzipError(
                f"{model_name} knows nothing, and preset {self.name} learns nothing; choose another preset"
            )
        return self.scratch


_ALL = (
    Preset(
        name="fast",
        number=0,
        block_size=1 << 21,
        trained=Mode(lane_bytes=8192, max_lanes=256),
        scratch=None,
    ),
    Preset(
        name="default",
        number=1,
        block_size=1 << 20,
        trained=Mode(
            lane_bytes=4096,
            max_lanes=8,
            segment=10,
            settings=Settings(
                rate=7e-5,
                boost=6.0,
                boost_updates=200.0,
                beta=0.999,
                decay=0.016,
                floor=1e-2,
                drift=0.0032,
            ),
        ),
        scratch=Mode(
            lane_bytes=16384,
            max_lanes=4,
            segment=10,
            settings=Settings(
                rate=2e-3,
                boost=3.0,
                boost_updates=1000.0,
                beta=0.999,
                floor=1e-5,
                replay=4,
                replay_share=0.2,
            ),
        ),
    ),
    Preset(
        name="best",
        number=2,
        block_size=1 << 20,
        trained=Mode(
            lane_bytes=16384,
            max_lanes=1,
            segment=10,
            settings=Settings(
                rate=4e-5,
                boost=6.0,
                boost_updates=800.0,
                beta=0.999,
                decay=0.016,
                floor=4e-3,
                drift=0.0032,
            ),
        ),
        scratch=Mode(
            lane_bytes=16384,
            max_lanes=1,
            segment=10,
            settings=Settings(
                rate=1e-3,
                boost=7.0,
                boost_updates=2000.0,
                beta=0.999,
                floor=1e-5,
                replay=3,
                replay_share=0.15,
            ),
        ),
    ),
)
PRESETS = {preset.name: preset for preset in _ALL}
