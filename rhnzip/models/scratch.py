"""Networks that know nothing: drawn by the integer generator from their name alone.

An archive made with one needs no weights to decode, only this program: it all comes from the file, as the
Hutter Prize counts. `scratch:DEPTHxUNITS` names a coupled recurrent highway network, `scratch:2x256`, say;
`:SEED` may follow.

The int8 weights themselves are drawn, uniform in -127..127; scales and tables are exact multiples of powers
of two, so every machine draws the same network.
"""

from __future__ import annotations

import re

import numpy as np

from rhnzip.errors import UnknownModelError
from rhnzip.exact.random import uniform_int8, uniform_unit
from rhnzip.exact.weights import ExactWeights, Float, Linear
from rhnzip.models.modelfile import Model
from rhnzip.models.rhn import RHN, RHNConfig

PREFIX = "scratch:"
MAX_UNITS = 4096
MAX_DEPTH = 32
MAX_SIZE = 1 << 25
TABLE_RANGE = 0.25


def scratch_model(name: str) -> Model:
    """Draw the network that `name` stands for.

    Raises:
        UnknownModelError: a name of another form, or sizes out of range.

    >>> scratch_model("scratch:2x16").id == scratch_model("scratch:2x16:0").id
    True
    """
    match = re.fullmatch(rf"{PREFIX}([0-9]{{1,2}})x([0-9]{{1,4}})(?::([0-9]{{1,9}}))?", name)
    if match is None:
        raise UnknownModelError(
            f"{name!r}: write scratch:DEPTHxUNITS, such as scratch:2x256, with :SEED if you like"
        )
    depth, units, seed = int(match[1]), int(match[2]), int(match[3] or 0)
    if not (1 <= depth <= MAX_DEPTH and 8 <= units <= MAX_UNITS):
        raise UnknownModelError(f"{name!r}: depth must be 1..{MAX_DEPTH} and units 8..{MAX_UNITS}")
    stream = f"scratch {depth}x{units} {seed}"
    if depth * units * units > MAX_SIZE:
        raise UnknownModelError(
            f"{name!r}: more than {2 * MAX_SIZE:,} weights; learning would not fit into memory"
        )
    cell = RHN(RHNConfig(units=units, depth=depth))
    shapes = cell.folded_shapes()
    # weights are uniform within about 1 / sqrt(K), rounded down to a power of two
    bound = np.float32(2.0 ** -(((units - 1).bit_length() + 1) // 2))
    linears = {}
    for tensor, (inner, columns) in shapes.linears.items():
        weight = uniform_int8(f"{stream} {tensor}", inner * columns).reshape(inner, columns)
        scale = np.full(columns, bound / np.float32(127) / np.float32(127), np.float32)
        linears[tensor] = Linear(weight, scale)
    tables: dict[str, Float] = {}
    for tensor, (rows, columns) in shapes.tables.items():
        table = np.zeros((rows, columns), np.float32)
        if tensor == "input":
            table = (uniform_unit(f"{stream} {tensor}", rows * columns) - np.float32(0.5)).reshape(
                rows, columns
            )
            table = table * np.float32(2 * TABLE_RANGE)
        tables[tensor] = table
    short = f"{PREFIX}{depth}x{units}" + (f":{seed}" if seed else "")
    weights = ExactWeights(linears, tables, {"state": 127.0})
    return Model(short, cell, weights, {"description": "drawn at random; learns everything from the file"})
