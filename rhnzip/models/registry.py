"""Cells by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rhnzip.errors import ModelError
from rhnzip.models.cell import Cell
from rhnzip.models.fsrnn import FSRNN, FSRNNConfig
from rhnzip.models.hsg import HSG, HSGConfig
from rhnzip.models.hyper_rhn import HyperRHN, HyperRHNConfig
from rhnzip.models.lstm import LSTM, LSTMConfig
from rhnzip.models.rhn import RHN, RHNConfig

CELLS: dict[str, tuple[type[Any], type[Any]]] = {
    "fsrnn": (FSRNNConfig, FSRNN),
    "hsg": (HSGConfig, HSG),
    "hyper_rhn": (HyperRHNConfig, HyperRHN),
    "lstm": (LSTMConfig, LSTM),
    "rhn": (RHNConfig, RHN),
}


def make_cell(config: dict[str, Any]) -> Cell:
    """Build a cell from its configuration (`cell` names the kind).

    Raises:
        ModelError: unknown kind, or a field that is missing, unknown or of the wrong type.
    """
    kind = config.get("cell")
    if not isinstance(kind, str) or kind not in CELLS:
        raise ModelError(f"unknown cell {kind!r}; this release has: {', '.join(CELLS)}")
    config_class, cell_class = CELLS[kind]
    known = {field.name: field for field in fields(config_class)}
    for name, value in config.items():
        if name not in known:
            raise ModelError(f"{kind}: unknown setting {name!r}")
        expected: Any = {"int": int, "float": (int, float), "bool": bool, "str": str}[str(known[name].type)]
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ModelError(f"{kind}: setting {name!r} is {value!r}, not of type {known[name].type}")
        least = 0 if known[name].default == 0 else 1
        if expected is int and not least <= value <= 1 << 16:
            raise ModelError(f"{kind}: setting {name!r} is {value}, not in {least}..65536")
    try:
        cell: Cell = cell_class(config_class(**config))
    except TypeError as error:
        raise ModelError(f"{kind}: {error}") from error
    return cell
