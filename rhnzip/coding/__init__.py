"""Predictor times range coder: what turns blocks into payloads. The archive format knows nothing of it."""

from __future__ import annotations

import logging

from rhnzip.adaptation import PARAMETER_IDS, from_parameters
from rhnzip.coding.codec import BlockCodec, EnsembleCodec, FrozenCodec, LearningCodec, looks_random
from rhnzip.coding.presets import PRESETS, BlockShape, Preset
from rhnzip.errors import FormatError
from rhnzip.exact.backend import get_backend
from rhnzip.exact.constants import ARITHMETIC_VERSION
from rhnzip.models.ensemble import Ensemble
from rhnzip.models.library import builtin_paths, find_model, load, load_model
from rhnzip.models.modelfile import Model

__all__ = [
    "ARITHMETIC_VERSION",
    "PARAMETER_IDS",
    "PRESETS",
    "BlockCodec",
    "BlockShape",
    "Model",
    "Preset",
    "builtin_paths",
    "find_model",
    "load",
    "load_model",
    "looks_random",
    "open_codec",
]

logger = logging.getLogger(__name__)


def open_codec(
    model: Model | Ensemble,
    *,
    learning: bool,
    parameters: dict[int, int],
    backend: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> BlockCodec:
    """Make the codec for a frame.

    Raises:
        FormatError: parameters that this release does not know, or that do not fit.
        BackendError: see `rhnzip.exact.backend.get_backend`.
    """
    chosen = get_backend(backend, device, any(member.cell.general for member in model.members))
    if parameters and not learning:
        raise FormatError("the frame has learning parameters but does not learn")
    codecs: list[FrozenCodec | LearningCodec] = []
    for member in model.members:
        if learning:
            settings = from_parameters(parameters)
            codecs.append(LearningCodec(member.cell, member.weights, chosen, settings, threads))
        else:
            codecs.append(FrozenCodec(member.cell, member.weights, chosen, threads))
    logger.info(
        "model %s (%s), %s backend on %s, threads: %d, %s",
        model.name,
        model.id.hex(),
        chosen.name,
        chosen.device,
        codecs[0].threads,
        "learning" if learning else "frozen",
    )
    return codecs[0] if len(codecs) == 1 else EnsembleCodec(codecs, chosen, threads)
