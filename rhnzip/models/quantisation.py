"""Trained float parameters to an exact network: fold, then int8 weights per output column."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rhnzip.errors import ModelError
from rhnzip.exact.constants import INT8_MAX, TINY
from rhnzip.exact.floating import FloatOps
from rhnzip.exact.weights import ExactWeights, Float, quantise
from rhnzip.models.cell import START_SYMBOL, Cell, Folded
from rhnzip.models.evaluation import Bytes, in_lanes


def exact_weights(cell: Cell, parameters: Mapping[str, Tensor], sample: Bytes) -> ExactWeights:
    """Quantise a trained network; `sample` text measures the values whose range the cell does not know.

    Raises:
        ModelError: parameters that are not finite, or too large; no sample where one is needed.
    """
    with torch.no_grad():
        folded = cell.fold({name: value.detach().cpu().float() for name, value in parameters.items()})
    ranges = {}
    if None in cell.value_scales().values():
        ranges = measured_ranges(cell, folded, sample)
    scales = {
        name: float(np.float32(scale or INT8_MAX / min(max(ranges[name], 2.0**-10), 2.0**20)))
        for name, scale in cell.value_scales().items()
    }
    inputs = cell.inputs()
    linears = {name: quantise(_kept(w.numpy()), scales[inputs[name]]) for name, w in folded.linears.items()}
    tables = {name: _kept(table.numpy()) for name, table in folded.tables.items()}
    weights = ExactWeights(linears, tables, scales)
    weights.check()
    return weights


def _kept(x: Float) -> Float:
    """Set tiny numbers to zero; NaN and huge ones are left for `check` to refuse."""
    return np.where((np.abs(x) < np.float32(TINY)), np.float32(0), x).astype(np.float32)


@torch.no_grad()
def measured_ranges(cell: Cell, folded: Folded, sample: Bytes, lanes: int = 16) -> dict[str, float]:
    """Largest magnitude of each named value on `sample`, in float.

    Raises:
        ModelError: the sample is empty.
    """
    if not len(sample):
        raise ModelError("the ranges of the network's values cannot be measured without a sample of text")
    lanes = min(lanes, len(sample))
    data = torch.from_numpy(in_lanes(sample, lanes)[:, :2048].T.astype(np.int64))
    ranges: dict[str, float] = {}
    ops = FloatOps(folded.linears, folded.tables, fused=False, ranges=ranges)
    state = tuple(torch.zeros(lanes, width) for width in cell.state_widths())
    previous = torch.full_like(data[0], START_SYMBOL)
    for row in data:
        state = cell.step(ops, previous, state)
        previous = row
    return ranges
