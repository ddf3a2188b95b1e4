"""Counter-based integer random numbers: value i of a named stream depends on nothing but the name and i.

Each 64-bit value is SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators") applied to key + (i + 1) * golden; the key is the first 8 bytes of the SHA-256 of the stream's
name. Only integers and exact float operations are used, so every machine draws the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(stream: str, size: int) -> NDArray[np.uint64]:
    """64 random bits each.

    >>> int(random_bits("example", 3)[2]) == int(random_bits("example", 9)[2])
    True
    """
    key = np.uint64(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        z = key + np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform_unit(stream: str, size: int) -> NDArray[np.float32]:
    """Uniform multiples of 2^-24 in [0, 1)."""
    return (random_bits(stream, size) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def uniform_int8(stream: str, size: int) -> NDArray[np.int8]:
    """Integers in -127..127, uniform up to 2^-55."""
    return ((random_bits(stream, size) % np.uint64(255)).astype(np.int16) - 127).astype(np.int8)
