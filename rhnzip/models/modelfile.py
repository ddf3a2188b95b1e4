"""Model files: an exact network, its configuration and its card in one safetensors file.

Tensors: `NAME.weight` int8 (K, N) and `NAME.scale` float32 (N,) for each linear map, `table.NAME` float32
(R, N), `value.NAME` float32 (1,) for each value's int8 scale. Metadata: `format`, `name`, `config` and `card`
(JSON).

The model id that archives carry is the first 8 bytes of SHA-256 over the canonical configuration and the
sorted (name, dtype, shape, little-endian bytes) of the tensors: not over the card, which may be reworded.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rhnzip.errors import ModelError
from rhnzip.exact.constants import SYMBOLS
from rhnzip.exact.weights import ExactWeights, Linear
from rhnzip.models.cell import Cell
from rhnzip.models.registry import make_cell

FORMAT = "rhnzip-model-1"
MAX_MODEL_BYTES = 1 << 30
MAX_NAME = 64


@dataclass(frozen=True)
class Model:
    """An exact network ready to code with.

    Attributes:
        name: what archives and `--model` call it.
        cell: the network's equations and sizes.
        weights: its parameters.
        card: what it was trained on and how well it does (free-form, JSON-serialisable).
        id: 8 bytes that identify configuration and weights.
    """

    name: str
    cell: Cell
    weights: ExactWeights
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Model, ...]:
        """The model itself: an ensemble has more."""
        return (self,)

    @property
    def id(self) -> bytes:
        """First 8 bytes of the SHA-256 described above."""
        digest = hashlib.sha256(canonical_config(self.cell).encode())
        for name, tensor in sorted(_tensors(self.weights).items()):
            little = tensor.astype(tensor.dtype.newbyteorder("<"))
            digest.update(f"\n{name} {tensor.dtype.name} {list(tensor.shape)}\n".encode())
            digest.update(little.tobytes())
        return digest.digest()[:8]


def canonical_config(cell: Cell) -> str:
    """Configuration as JSON with sorted keys and no spaces; settings at their default are left out.

    So that a setting that a later release adds changes no model's id.
    """
    settings = {
        field.name: getattr(cell.config, field.name)
        for field in fields(cell.config)
        if field.name == "cell" or getattr(cell.config, field.name) != field.default
    }
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def _tensors(weights: ExactWeights) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    for name, linear in weights.linears.items():
        tensors[f"{name}.weight"], tensors[f"{name}.scale"] = linear.weight, linear.scale
    tensors |= {f"table.{name}": table for name, table in weights.tables.items()}
    tensors |= {f"value.{name}": np.array([scale], np.float32) for name, scale in weights.scales.items()}
    return tensors


def save_model(model: Model, path: Path) -> None:
    """Write a model file whole or not at all.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    model.weights.check()
    temporary = path.with_name(path.name + ".tmp")
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in _tensors(model.weights).items()}
    metadata = {
        "format": FORMAT,
        "name": model.name,
        "config": canonical_config(model.cell),
        "card": json.dumps(model.card, sort_keys=True),
    }
    try:
        save_file(tensors, temporary, metadata)
        os.chmod(temporary, 0o644)  # the library makes it for its owner alone; an installed model is for all
        os.replace(temporary, path)
    except BaseException:  # a full disk, Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def load_model_file(path: Path) -> Model:
    """Read and check a model file.

    Raises:
        ModelError: unreadable, not a model file, too large, or holding numbers the arithmetic does not cover.
    """
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise ModelError(f"{path}: larger than {MAX_MODEL_BYTES} bytes")
        with safe_open(path, "numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ModelError(f"{path}: not a model file of format {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        config, card = json.loads(metadata["config"]), json.loads(metadata.get("card", "{}"))
        name = metadata["name"]
    except (OSError, SafetensorError, AttributeError) as error:  # AttributeError: a type numpy does not have
        raise ModelError(f"{path}: cannot be read as a model file: {error}") from error
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: damaged metadata: {error!r}") from error
    if not (isinstance(config, dict) and isinstance(card, dict)):
        raise ModelError(f"{path}: config and card must be JSON objects")
    if not 1 <= len(name.encode()) <= MAX_NAME or not name.isprintable():
        raise ModelError(f"{path}: the model's name must be 1 to {MAX_NAME} printable bytes")
    cell = make_cell(config)
    if cell.config.vocabulary != SYMBOLS:
        raise ModelError(f"{path}: a vocabulary of {cell.config.vocabulary}; coding needs {SYMBOLS}")
    model = Model(name, cell, _weights(path, cell, tensors), card)
    model.weights.check()
    return model


def _weights(path: Path, cell: Cell, tensors: dict[str, NDArray[Any]]) -> ExactWeights:
    """Pick the tensors that the cell needs; every one must be there, of the right shape, and no other."""
    expected = cell.folded_shapes()

    def take(name: str, shape: tuple[int, ...] | None) -> NDArray[Any]:
        if name not in tensors:
            raise ModelError(f"{path}: tensor {name} is missing")
        tensor = tensors.pop(name)
        if tensor.shape != shape:
            raise ModelError(f"{path}: tensor {name} has shape {tensor.shape}, not {shape}")
        return tensor

    linears = {
        name: Linear(take(f"{name}.weight", shape), take(f"{name}.scale", shape[1:]))
        for name, shape in expected.linears.items()
    }
    tables = {name: take(f"table.{name}", shape) for name, shape in expected.tables.items()}
    scales = {}
    for name in cell.value_scales():
        scale = take(f"value.{name}", (1,))
        if scale.dtype != np.float32:
            raise ModelError(f"{path}: tensor value.{name} is of type {scale.dtype}, not float32")
        scales[name] = float(scale[0])
    if tensors:
        raise ModelError(f"{path}: unexpected tensor {next(iter(tensors))}")
    return ExactWeights(linears, tables, scales)
