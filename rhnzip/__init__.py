"""rhnzip: a neural text compressor whose archives decode to the same bytes on any machine.

This module re-exports the public API. What computes is imported on first use: `import rhnzip` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhnzip.errors import (
    BackendError,
    CorruptError,
    FormatError,
    LimitError,
    ModelError,
    RhnzipError,
    TrainingError,
    UnknownModelError,
)

if TYPE_CHECKING:
    from rhnzip.streams import compress, compress_stream, decompress, decompress_stream, inspect_stream

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CorruptError",
    "FormatError",
    "LimitError",
    "ModelError",
    "RhnzipError",
    "TrainingError",
    "UnknownModelError",
    "__version__",
    "compress",
    "compress_stream",
    "decompress",
    "decompress_stream",
    "inspect_stream",
]

if not TYPE_CHECKING:  # a type checker that saw this would take every misspelt name for one of ours

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rhnzip import streams

        return getattr(streams, name)


def __dir__() -> list[str]:
    return sorted(__all__)
