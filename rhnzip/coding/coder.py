"""The range coder: constriction's, fed with integer counts.

constriction rounds float probabilities to multiples of 2^-24. Counts c >= 0 that sum to 2^24 - 256 make its
internal scale exactly 1, and every symbol gets (c + 1) / 2^24: nothing is left to rounding.
"""

from __future__ import annotations

import constriction
import numpy as np
from numpy.typing import NDArray

from rhnzip.errors import CorruptError

_CATEGORICAL = constriction.stream.model.Categorical(perfect=False)


class Encoder:
    """Collects symbols into one stream of 32-bit words."""

    def __init__(self) -> None:
        """Start an empty stream."""
        self._coder = constriction.stream.queue.RangeEncoder()

    def encode(self, symbols: NDArray[np.int32], counts: NDArray[np.float32]) -> None:
        """Append symbols, shape (n,), under counts, shape (n, V), C-contiguous."""
        self._coder.encode(symbols, _CATEGORICAL, counts)

    def size(self) -> int:
        """Bytes so far."""
        return 4 * int(self._coder.num_words())

    def finish(self) -> bytes:
        """The stream as little-endian words."""
        words: NDArray[np.uint32] = self._coder.get_compressed()
        return words.astype("<u4").tobytes()


class Decoder:
    """Reads symbols back."""

    def __init__(self, payload: bytes) -> None:
        """Take a stream as `Encoder.finish` gives it.

        Raises:
            CorruptError: not a whole number of 32-bit words.
        """
        if len(payload) % 4:
            raise CorruptError(
                f"a coded payload of {len(payload)} bytes is not a whole number of 32-bit words"
            )
        self._coder = constriction.stream.queue.RangeDecoder(np.frombuffer(payload, "<u4").astype(np.uint32))

    def decode(self, counts: NDArray[np.float32]) -> NDArray[np.int32]:
        """Next symbol under each row of counts, shape (n, V) -> (n,).

        Raises:
            CorruptError: the stream holds what no encoder writes.
        """
        try:
            symbols: NDArray[np.int32] = self._coder.decode(_CATEGORICAL, counts)
        except (AssertionError, ValueError, RuntimeError) as error:
            raise CorruptError(
                "the coded payload is damaged: the range coder met an impossible value"
            ) from error
        return symbols
