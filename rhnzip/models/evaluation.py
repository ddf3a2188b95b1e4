"""Bits per byte of a text under a network: in float, and in the exact arithmetic that codes it.

Both cut the text into the same lanes, each from a zero state, as the codec does, so the two figures differ by
the arithmetic alone, and the exact one times the length is what an archive's payload costs.

Legend: B lanes, T steps, V symbols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rhnzip.exact.backend import Backend
from rhnzip.exact.floating import FloatOps
from rhnzip.exact.weights import ExactWeights
from rhnzip.models.cell import START_SYMBOL, Cell

Bytes = NDArray[np.uint8]
LANE_BYTES = 8192


def in_lanes(text: Bytes, lanes: int) -> Bytes:
    """Cut text into contiguous lanes, dropping the last few bytes: shape (lanes, len // lanes)."""
    length = len(text) // lanes
    return text[: lanes * length].reshape(lanes, length)


def evaluation_lanes(length: int) -> int:
    """Lanes for a text of `length` bytes: about 8 kB each."""
    return max(1, round(length / LANE_BYTES))


def segment_loss(
    cell: Cell, ops: FloatOps, symbols: Tensor, target: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Mean loss in nats per byte of a segment (T, B), and the state after it."""
    states = []
    for step in range(target.shape[0]):
        state = cell.step(ops, symbols[step], state)
        states.append(state)
    stacked = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    logits = cell.head(ops, stacked)
    return functional.cross_entropy(logits, target.reshape(-1)), state


@torch.no_grad()
def float_bpc(
    cell: Cell,
    parameters: Mapping[str, Tensor],
    text: Bytes,
    dtype: torch.dtype = torch.float32,
    segment: int = 256,
) -> float:
    """Bits per byte under the float network with trained `parameters`."""
    device = next(iter(parameters.values())).device
    data = torch.from_numpy(in_lanes(text, evaluation_lanes(len(text))).T.astype(np.int64)).to(device)
    previous = torch.cat([torch.full_like(data[:1], START_SYMBOL), data[:-1]])
    folded = cell.fold(parameters)
    ops = FloatOps(folded.linears, folded.tables, dtype=dtype)
    state = tuple(torch.zeros(data.shape[1], width, device=device) for width in cell.state_widths())
    total = 0.0
    for start in range(0, len(data), segment):
        part = slice(start, start + segment)
        loss, state = segment_loss(cell, ops, previous[part], data[part], state)
        total += float(loss) * data[part].numel()
    return total / math.log(2) / data.numel()


def exact_bpc(cell: Cell, weights: ExactWeights, text: Bytes, backend: Backend) -> float:
    """Bits per byte under the exact network: the mean of -log2 of the probability the range coder sees."""
    data = np.ascontiguousarray(in_lanes(text, evaluation_lanes(len(text))).T.astype(np.int64))
    steps, lanes = data.shape
    ops = backend.prepare(weights).open(lanes)
    state = tuple(ops.zeros(width) for width in cell.state_widths())
    previous, total = np.full(lanes, START_SYMBOL, np.int64), 0.0
    for step in range(steps):
        ops.begin_step()
        state = cell.step(ops, ops.symbols(previous), state)
        counts = cell.head(ops, state)
        previous = data[step]
        chosen = counts[np.arange(lanes), previous].astype(np.float64)
        total -= float(np.log2((chosen + 1) / (1 << 24)).sum())
    return total / data.size
