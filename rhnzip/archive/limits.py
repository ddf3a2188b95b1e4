"""The most that a header may ask for. A reader checks against these before it allocates anything."""

from __future__ import annotations

MAX_BLOCK = 1 << 26
"""Raw bytes in a block."""

MAX_LANES = 1 << 12
"""Lanes in a block; nor can there be more lanes than bytes."""

MAX_ROWS = 1 << 17
"""Lanes times segment: with more rows an int8 product could overflow int32."""

MAX_EXTENSION = 1 << 26
"""Bytes in the payload of an extension block."""

MAX_NAME = 255
"""Bytes in a model's name."""

MAX_PARAMETERS = 1024
"""Bytes in the parameter section of a frame header."""


def max_payload(raw_length: int) -> int:
    """Return the most payload bytes that a coded block of `raw_length` bytes may have.

    Coding may cost more than it saves: a learning encoder can keep such a block coded, and what it learned.

    >>> max_payload(1), max_payload(1024)
    (65, 1216)
    """
    return raw_length + raw_length // 8 + 64
