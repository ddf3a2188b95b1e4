"""The update's settings as a frame header stores them: 32-bit values by id (docs/format.md)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rhnzip.errors import FormatError
from rhnzip.exact.backend import Settings
from rhnzip.exact.constants import TINY

PARAMETER_IDS = {
    1: "rate",
    2: "boost",
    3: "boost_updates",
    4: "beta",
    5: "decay",
    6: "floor",
    7: "replay",
    8: "replay_share",
    9: "drift",
}
"""Header ids of the settings; a learning frame stores all of them, but 7 and 8 only where it replays."""

_REPLAY = {"replay", "replay_share"}

RANGES = {
    "rate": (0.0, 1.0),
    "boost": (0.0, 2.0**20),
    "boost_updates": (2.0**-20, 2.0**20),
    "beta": (0.0, 1.0),
    "decay": (0.0, 1.0),
    "floor": (2.0**-40, 1.0),
    "drift": (0.0, 1.0),
    "replay": (1.0, 256.0),
    "replay_share": (2.0**-20, 1.0),
}

_TINY_BITS = int(np.array(TINY, np.float32).view(np.uint32))


def to_parameters(settings: Settings) -> dict[int, int]:
    """Bits of the float32 values by id.

    >>> from_parameters(to_parameters(Settings(rate=0.25))).rate
    0.25
    """
    return {
        number: int(np.array(getattr(settings, name), np.float32).view(np.uint32))
        for number, name in PARAMETER_IDS.items()
        if settings.replay or name not in _REPLAY
    }


def from_parameters(parameters: dict[int, int]) -> Settings:
    """Undo `to_parameters`.

    Raises:
        FormatError: an unknown id, or a value out of its range.
    """
    values: dict[str, Any] = {}
    for number, bits in parameters.items():
        name = PARAMETER_IDS.get(number)
        if name is None:
            raise FormatError(
                f"the frame has parameter {number}, which this release does not know; update rhnzip"
            )
        value = float(np.array(bits, np.uint32).view(np.float32))
        low, high = RANGES[name]
        # compared as bits: a processor that flushes subnormal numbers takes them for zero
        if not low <= value <= high or 0 < bits & 0x7FFFFFFF < _TINY_BITS:
            raise FormatError(f"the frame's {name} is {value}, not 0 or at least 2^-60 within {low}..{high}")
        if name == "replay" and value != int(value):
            raise FormatError(f"the frame replays {value} lanes, which is no whole number")
        values[name] = int(value) if name == "replay" else value
    missing = {field.name for field in fields(Settings)} - set(values)
    missing -= set() if _REPLAY & set(values) else _REPLAY
    if missing:
        raise FormatError(f"the frame learns but does not say its {', '.join(sorted(missing))}")
    return Settings(**values)
