"""Every error rhnzip raises on purpose; catch `RhnzipError` to catch them all."""

from __future__ import annotations


class RhnzipError(Exception):
    """Root of rhnzip's errors; its text says what is wrong and, where possible, what to do."""


class FormatError(RhnzipError):
    """The data is not a .rhn archive, or uses a version or feature that this release does not know."""


class LimitError(FormatError):
    """A header asks for more lanes, memory or bytes than the format or this process allows."""


class CorruptError(RhnzipError):
    """The archive is damaged or cut short.

    Attributes:
        recovered: how many leading bytes of the original were decoded and verified before the damage.
    """

    def __init__(self, message: str, recovered: int = 0) -> None:
        """Keep the message and the count of verified bytes."""
        super().__init__(message)
        self.recovered = recovered


class UnknownModelError(RhnzipError):
    """The archive needs a model that is not at hand."""


class ModelError(RhnzipError):
    """A model file is refused: malformed, out of range, or not what its header says."""


class BackendError(RhnzipError):
    """A compute backend is unavailable or failed its known-answer test."""


class TrainingError(RhnzipError):
    """Training cannot go on: bad data, a checkpoint of another run, or a loss that is not a number."""
