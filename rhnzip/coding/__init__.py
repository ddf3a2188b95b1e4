"""Predictor times range coder: what turns blocks into payloads. The archive format knows nothing of it."""

from __future__ import annotations

from rhnzip.coding.codec import BlockCodec, FrozenCodec
from rhnzip.coding.library import builtin_paths, find_model, load_model
from rhnzip.coding.presets import PRESETS, BlockShape, Preset
from rhnzip.errors import FormatError
from rhnzip.exact.backend import get_backend
from rhnzip.exact.constants import ARITHMETIC_VERSION
from rhnzip.models.modelfile import Model

__all__ = [
    "ARITHMETIC_VERSION",
    "PRESETS",
    "BlockCodec",
    "BlockShape",
    "Model",
    "Preset",
    "builtin_paths",
    "find_model",
    "load_model",
    "open_codec",
]


def open_codec(
    model: Model,
    *,
    learning: bool,
    parameters: dict[int, int],
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> BlockCodec:
    """Make the codec for a frame.

    Raises:
        FormatError: the frame asks for learning or parameters that this release does not have.
        BackendError: see `rhnzip.exact.backend.get_backend`.
    """
    if learning or parameters:
        raise FormatError("the archive was written by a newer rhnzip that learns while coding; update to decode it")
    return FrozenCodec(model.cell, model.weights, get_backend(backend, device), threads)
