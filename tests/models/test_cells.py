"""Every cell: parameter counts, float against exact, a round trip, learning, backends against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rhnzip.coding.codec import row_bytes
from rhnzip.exact.backend import Settings, get_backend
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.floating import FloatOps
from rhnzip.models.cell import Cell, parameter_count
from rhnzip.models.evaluation import exact_bpc, float_bpc, segment_loss
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.registry import make_cell

SMALL: dict[str, dict[str, Any]] = {
    "rhn": {"cell": "rhn", "units": 24, "depth": 3, "embedding": 16},
    "rhn, uncoupled": {"cell": "rhn", "units": 24, "depth": 2, "coupled": False, "gate_bias": 0.0},
    "rhn, highway head": {"cell": "rhn", "units": 24, "depth": 2, "head_layers": 2},
    "hsg": {"cell": "hsg", "units": 24, "depth": 3, "embedding": 16},
    "hyper_rhn": {"cell": "hyper_rhn", "units": 24, "depth": 2, "hyper_units": 12, "embedding": 16},
    "lstm": {"cell": "lstm", "units": 20, "layers": 1, "embedding": 16},
    "lstm, stacked": {"cell": "lstm", "units": 20, "layers": 3, "norm": False, "embedding": 16},
    "lstm, skip": {"cell": "lstm", "units": 20, "layers": 3, "skip": True, "embedding": 16},
    "lstm, sequential": {"cell": "lstm", "units": 20, "layers": 3, "sequential": True, "embedding": 16},
    "fs-lstm-2": {
        "cell": "fsrnn", "fast_units": 20, "slow_units": 28, "keep_hidden": 0.9, "keep_cell": 0.5
    },
    "fs-lstm-4": {"cell": "fsrnn", "fast_units": 20, "slow_units": 28, "fast_cells": 4},
    "fs-rhn": {"cell": "fsrnn", "fast_units": 20, "slow_units": 28, "fast": "rhn", "slow": "rhn"},
    "fs, rhn over lstm": {"cell": "fsrnn", "fast_units": 20, "slow_units": 28, "fast": "rhn"},
}  # fmt: skip
CELLS = pytest.mark.parametrize("name", SMALL)
SAMPLE = np.frombuffer(
    b"the cell reads the text, one byte at a time, and says what comes next. " * 12, np.uint8
)


def drawn(cell: Cell, seed: int = 1) -> dict[str, torch.Tensor]:
    """Initial parameters with biases and gains moved off their even starting values."""
    generator = torch.Generator().manual_seed(seed)
    parameters = cell.initial(generator)
    return {
        name: value + 0.2 * torch.randn(value.shape, generator=generator) if value.ndim == 1 else value
        for name, value in parameters.items()
    }


@CELLS
def test_shapes_agree(name: str) -> None:
    cell = make_cell(SMALL[name])
    parameters = cell.initial(torch.Generator().manual_seed(1))
    assert {key: tuple(value.shape) for key, value in parameters.items()} == cell.shapes()
    folded, shapes = cell.fold(parameters), cell.folded_shapes()
    assert {key: tuple(value.shape) for key, value in folded.linears.items()} == shapes.linears
    assert {key: tuple(value.shape) for key, value in folded.tables.items()} == shapes.tables
    assert set(cell.inputs()) == set(shapes.linears)
    assert set(cell.inputs().values()) <= set(cell.value_scales())


@CELLS
def test_exact_is_close_to_float(name: str) -> None:
    cell = make_cell(SMALL[name])
    parameters = drawn(cell)
    weights = exact_weights(cell, parameters, SAMPLE)
    as_float = float_bpc(cell, parameters, SAMPLE)
    assert abs(exact_bpc(cell, weights, SAMPLE, get_backend("numba", general=True)) - as_float) < 0.02


def shares(lanes: int, active: int) -> NDArray[np.float32]:
    return (np.arange(lanes) < active).astype(np.float32)


def learned(cell: Cell, backend: str, threads: int = 1) -> list[bytes]:
    """Counts of every step of three segments, with an update after each."""
    weights = exact_weights(cell, drawn(cell), SAMPLE)
    settings = Settings(rate=2e-3, boost=4.0, boost_updates=3.0, beta=0.9, decay=1e-3, floor=1e-3)
    chosen = get_backend(backend, general=True)
    learner = chosen.learner(weights, cell.inputs(), settings)
    lanes, steps = 4, 5
    parts = [slice(0, 2), slice(2, 4)] if threads > 1 else [slice(0, 4)]
    segment = learner.open_segment(lanes, steps, parts)
    states = [tuple(ops.zeros(width) for width in cell.state_widths()) for ops in segment.groups]
    text = SAMPLE[: lanes * 15].reshape(lanes, 15).astype(np.int64)
    previous, out = np.zeros(lanes, np.int64), []
    for at in range(15):
        for group, (ops, part) in enumerate(zip(segment.groups, parts, strict=True)):
            if at % steps == 0:
                states[group] = ops.begin_segment(states[group])
            ops.begin_step()
            states[group] = cell.step(ops, ops.symbols(previous[part]), states[group])
            out.append(cell.head(ops, states[group]).tobytes())
            width = part.stop - part.start
            ops.learn(text[part, at], shares(width, width if at < 14 else 1))
        previous = text[:, at].copy()
        if at % steps == steps - 1:
            for ops in segment.groups:
                ops.backward()
            for task in segment.update_tasks(threads):
                task()
    if threads > 1:  # as if all lanes had been in one group
        out = [first + second for first, second in zip(out[::2], out[1::2], strict=True)]
    return out


@CELLS
def test_what_a_row_keeps_is_bounded(name: str) -> None:
    """A hostile header must not ask for more memory than the codec reckons with."""
    sizes = {key: 8 * value if "units" in key else value for key, value in SMALL[name].items()}
    cell = make_cell(sizes)
    weights = exact_weights(cell, drawn(cell), SAMPLE[:100])
    lanes, steps = 2, 3
    learner = CpuBackend().learner(weights, cell.inputs(), Settings())
    segment = learner.open_segment(lanes, steps, [slice(0, lanes)])
    (ops,) = segment.groups
    state = ops.begin_segment(tuple(ops.zeros(width) for width in cell.state_widths()))
    for _ in range(steps):
        ops.begin_step()
        state = cell.step(ops, ops.symbols(np.zeros(lanes, np.int64)), state)
        cell.head(ops, state)
        ops.learn(np.zeros(lanes, np.int64), shares(lanes, lanes))
    ops.backward()
    kept = 0
    for value in (value for values in ops._values for value in values):
        kept += value.floats.nbytes + value.int8.nbytes
        kept += 0 if value.gradient is None else value.gradient.nbytes
    for use in segment.uses.values():
        kept += use.inputs.nbytes + use.sums.nbytes + use.gradients.nbytes
    kept += sum(lookup.gradients.nbytes for lookup in segment.lookups.values())
    assert kept <= lanes * steps * row_bytes(cell, weights)


@CELLS
def test_learning_is_the_same_everywhere(name: str) -> None:
    cell = make_cell(SMALL[name])
    one = learned(cell, "numba")
    assert learned(cell, "reference") == one
    if "head" not in name:  # ended lanes differ between one group and two at the last step alone
        assert learned(cell, "numba", threads=2)[:14] == one[:14]


@CELLS
def test_exact_gradients_are_those_of_autograd(name: str) -> None:
    cell = make_cell(SMALL[name])
    weights = exact_weights(cell, drawn(cell), SAMPLE)
    lanes, steps = 3, 6
    text = SAMPLE[: lanes * steps].reshape(lanes, steps).astype(np.int64)
    previous = np.concatenate([np.zeros((lanes, 1), np.int64), text[:, :-1]], axis=1)

    learner = get_backend("numba", general=True).learner(weights, cell.inputs(), Settings())
    segment = learner.open_segment(lanes, steps, [slice(0, lanes)])
    (ops,) = segment.groups
    state = ops.begin_segment(tuple(ops.zeros(width) for width in cell.state_widths()))
    for at in range(steps):
        ops.begin_step()
        state = cell.step(ops, ops.symbols(previous[:, at].copy()), state)
        cell.head(ops, state)
        ops.learn(text[:, at].copy(), shares(lanes, lanes))
    ops.backward()

    scales = {key: weights.scales[value] for key, value in cell.inputs().items()}
    linears = {
        key: torch.tensor(linear.weight * (linear.scale * scales[key]), requires_grad=True)
        for key, linear in weights.linears.items()
    }
    tables = {key: torch.tensor(table, requires_grad=True) for key, table in weights.tables.items()}
    floats = FloatOps(linears, tables, fused=False)
    start = tuple(torch.zeros(lanes, width) for width in cell.state_widths())
    loss, _ = segment_loss(cell, floats, torch.tensor(previous.T), torch.tensor(text.T), start)
    (loss * lanes * steps).backward()  # the exact side sums over lanes and steps

    def close(exact: Any, wanted: torch.Tensor | None) -> None:
        assert wanted is not None
        other = wanted.double().numpy()
        # int8 at every product: up to a quarter off in the deepest of these small networks, at random
        assert np.sum(exact * other) >= 0.95 * np.linalg.norm(exact) * np.linalg.norm(other)
        assert 0.8 <= np.linalg.norm(exact) / np.linalg.norm(other) <= 1.25

    learned_tables = set()
    for key, use in [*segment.uses.items(), *segment.lookups.items()]:
        gradients = use.gradients.reshape(lanes * steps, -1).astype(np.float64)
        if key in linears:
            inputs = use.inputs.numpy().reshape(lanes * steps, -1) / scales[key]
            close(inputs.T @ gradients, linears[key].grad)
        if use.table:
            total = np.zeros(weights.tables[use.table].shape)
            np.add.at(total, use.index.reshape(-1), gradients)
            close(total, tables[use.table].grad)
            learned_tables.add(use.table)
    assert learned_tables == set(tables)


@CELLS
def test_learning_helps(name: str) -> None:
    counts = [
        np.frombuffer(row, np.float32).reshape(4, 256) for row in learned(make_cell(SMALL[name]), "numba")
    ]
    text = SAMPLE[:60].reshape(4, 15)
    bits = [-np.log2((row[range(4), text[:, t]] + 1) / 2**24).mean() for t, row in enumerate(counts)]
    assert np.mean(bits[10:]) < np.mean(bits[:5])


FS = {"cell": "fsrnn", "slow_units": 1500}
PTB = {"vocabulary": 50}
PUBLISHED: list[tuple[dict[str, Any], int]] = [
    ({"cell": "rhn", "units": 1500, "depth": 10, "embedding": 205, "vocabulary": 205}, 45_994_730),
    (FS | {"fast_units": 900, "vocabulary": 205}, 27_484_985),
    (FS | {"fast_units": 900}, 27_543_992),
    (FS | {"fast_units": 730, "fast_cells": 4, "vocabulary": 205}, 27_298_135),
    (FS | {"fast_units": 730, "fast_cells": 4}, 27_348_472),
    (FS | {"fast_units": 1200, "fast_cells": 4, "vocabulary": 205}, 48_055_685),
    (FS | {"fast_units": 1200, "fast_cells": 4}, 48_129_992),
    (FS | PTB | {"fast_units": 700, "slow_units": 400, "embedding": 128}, 7_225_050),
    # The repository's count is 4,000 more: F3 and F4 get an input of one zero there, and weights for it.
    (FS | PTB | {"fast_units": 500, "slow_units": 400, "fast_cells": 4, "embedding": 128}, 6_565_050 - 4_000),
    ({"cell": "hyper_rhn", "units": 1000, "depth": 7} | PTB, 15_262_736),
]


@pytest.mark.parametrize(("config", "count"), PUBLISHED)
def test_parameter_counts_are_the_papers(config: dict[str, Any], count: int) -> None:
    assert parameter_count(make_cell(config)) == count
