"""Networks that know nothing: drawn by the integer generator from their name alone.

An archive made with one needs no weights to decode, only this program: it all comes from the file, as the
Hutter Prize counts. `scratch:LAYERSxUNITS` names an LSTM with skip connections (Graves 2013), such as
`scratch:2x192`; `:SEED` may follow; `scratch` alone is one of them. An LSTM learns faster from nothing than a
recurrent highway network: it bears steps four times as long.

The int8 weights themselves are drawn, uniform in -127..127; scales and tables are exact multiples of powers
of two, so every machine draws the same network.
"""

from __future__ import annotations

import re

import numpy as np

from rhnzip.errors import UnknownModelError
from rhnzip.exact.random import uniform_int8, uniform_unit
from rhnzip.exact.weights import ExactWeights, Float, Linear
from rhnzip.models.blocks import FORGET_BIAS
from rhnzip.models.lstm import LSTM, LSTMConfig
from rhnzip.models.modelfile import Model

PREFIX = "scratch:"
SHORT = "scratch"
"""What may be written for DEFAULT."""
DEFAULT = "scratch:3x256"
MAX_UNITS = 4096
MAX_LAYERS = 32
MAX_SIZE = 1 << 26
TABLE_RANGE = 0.25
UPPER_TABLE_RANGE = 0.0625
"""Of layers above the first: they see the symbol through it as well."""


def scratch_model(name: str) -> Model:
    """Draw the network that `name` stands for.

    Raises:
        UnknownModelError: a name of another form, or sizes out of range.

    >>> scratch_model("scratch:2x16").id == scratch_model("scratch:2x16:0").id
    True
    """
    match = re.fullmatch(
        rf"{PREFIX}([0-9]{{1,2}})x([0-9]{{1,4}})(?::([0-9]{{1,9}}))?", DEFAULT if name == SHORT else name
    )
    if match is None:
        raise UnknownModelError(
            f"{name!r}: write scratch:LAYERSxUNITS, such as {DEFAULT}, with :SEED if you like"
        )
    layers, units, seed = int(match[1]), int(match[2]), int(match[3] or 0)
    if not (1 <= layers <= MAX_LAYERS and 8 <= units <= MAX_UNITS):
        raise UnknownModelError(f"{name!r}: layers must be 1..{MAX_LAYERS} and units 8..{MAX_UNITS}")
    stream = f"scratch {layers}x{units} {seed}"
    cell = LSTM(LSTMConfig(units=units, layers=layers, skip=True, norm=False))
    shapes = cell.folded_shapes()
    if sum(inner * columns for inner, columns in shapes.linears.values()) > MAX_SIZE:
        raise UnknownModelError(
            f"{name!r}: more than {MAX_SIZE:,} weights; learning would not fit into memory"
        )
    # weights are uniform within about 1 / sqrt(H), rounded down to a power of two
    bound = np.float32(2.0 ** -(((units - 1).bit_length() + 1) // 2))
    linears = {}
    for tensor, (inner, columns) in shapes.linears.items():
        weight = uniform_int8(f"{stream} {tensor}", inner * columns).reshape(inner, columns)
        scale = np.full(columns, bound / np.float32(127) / np.float32(127), np.float32)
        linears[tensor] = Linear(weight, scale)
    tables: dict[str, Float] = {}
    for tensor, (rows, columns) in shapes.tables.items():
        table = np.zeros((rows, columns), np.float32)
        if tensor.endswith(".symbols"):
            width = TABLE_RANGE if tensor == "lstm.0.symbols" else UPPER_TABLE_RANGE
            drawn = uniform_unit(f"{stream} {tensor}", rows * columns) - np.float32(0.5)
            table = drawn.reshape(rows, columns) * np.float32(2 * width)
        elif tensor != "output_bias":
            table[:, 2 * units : 3 * units] = np.float32(FORGET_BIAS)
        tables[tensor] = table
    short = f"{PREFIX}{layers}x{units}" + (f":{seed}" if seed else "")
    weights = ExactWeights(linears, tables, {"hidden": 127.0})
    return Model(short, cell, weights, {"description": "drawn at random; learns everything from the file"})
