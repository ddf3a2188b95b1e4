"""The predictor that learns: what it may know, and when it learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhnzip.adaptation import LearningPredictor
from rhnzip.coding.predictor import FrozenPredictor
from rhnzip.exact.backend import Settings
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig

CELL = RHN(RHNConfig(units=6, depth=2, embedding=3))
SAMPLE = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 20, np.uint8)
WEIGHTS = exact_weights(CELL, CELL.initial(torch.Generator().manual_seed(3)), SAMPLE)
SETTINGS = Settings(rate=0.01, boost=1.0, boost_updates=3.0, beta=0.9, decay=1e-3, floor=1e-3)
BACKENDS: list[Any] = [CpuBackend(), ReferenceBackend()]
Counts = NDArray[np.float32]


def serial(tasks: Sequence[Callable[[], None]]) -> None:
    """Last one first: tasks must not wait for each other."""
    for task in reversed(tasks):
        task()


def new_learner(backend: Any = BACKENDS[0], chosen: Settings = SETTINGS) -> Any:
    return backend.learner(WEIGHTS, CELL.inputs(), chosen)


def block(
    learner: Any, symbols: NDArray[np.int32], steps: int, *, parts: list[slice] | None = None, active: int = 0
) -> list[Counts]:
    """Counts of all steps of a block, (T, B); the last `active` symbols of the last step alone if not 0."""
    lanes = symbols.shape[1]
    predictor = LearningPredictor(CELL, learner, parts or [slice(0, lanes)], steps, serial, 2)
    out = []
    for step, row in enumerate(symbols):
        last = active if active and step == len(symbols) - 1 else lanes
        out.append(predictor.counts().copy())
        predictor.update(row[:last])
    return out


def text(seed: int, steps: int, lanes: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(97, 101, (steps, lanes)).astype(np.int32)


def same(a: list[Counts], b: list[Counts]) -> bool:
    return [x.tobytes() for x in a] == [x.tobytes() for x in b]


@given(
    seed=st.integers(0, 1000),
    shape=st.tuples(st.integers(2, 10), st.integers(1, 5)),
    steps=st.integers(1, 4),
    data=st.data(),
    backend=st.sampled_from(BACKENDS),
)
@settings(max_examples=25, deadline=None)
def test_counts_depend_on_earlier_steps_alone(
    seed: int, shape: tuple[int, int], steps: int, data: st.DataObject, backend: Any
) -> None:
    symbols = text(seed, *shape)
    cut = data.draw(st.integers(0, shape[0] - 1))
    other = symbols.copy()
    other[cut:] = np.random.default_rng(seed + 1).integers(0, 256, other[cut:].shape)
    one, two = (block(new_learner(backend), x, steps) for x in (symbols, other))
    assert same(one[: cut + 1], two[: cut + 1])


def test_counts_depend_on_every_earlier_step() -> None:
    """A changed byte shows in its lane at the next step, and in all lanes once it is learned from."""
    symbols = text(1, 8, 3)
    other = symbols.copy()
    other[4, 1] += 1
    one, two = (block(new_learner(), x, 3) for x in (symbols, other))
    assert same(one[:5], two[:5])
    assert (one[5][1] != two[5][1]).any() and (one[5][[0, 2]] == two[5][[0, 2]]).all()
    assert all((one[6][lane] != two[6][lane]).any() for lane in range(3))  # learned from at the end of step 5


def test_learning_happens_at_the_end_of_a_segment() -> None:
    symbols, steps = text(2, 7, 2), 3
    frozen = FrozenPredictor(CELL, BACKENDS[0].prepare(WEIGHTS), [slice(0, 2)], serial)
    learning, differs = block(new_learner(), symbols, steps), []
    for row, counts in zip(symbols, learning, strict=True):
        differs.append((frozen.counts() != counts).any())
        frozen.update(row)
    assert differs == [False] * 3 + [True] * 4


def test_no_rate_is_frozen() -> None:
    """At rate 0 nothing moves but what int8 rounds to the same: a model's scales and weights come back."""
    learner = new_learner(chosen=replace(SETTINGS, rate=0.0))
    symbols = text(3, 9, 3)
    first, second = block(learner, symbols, 2), block(learner, symbols, 2)
    top = max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))
    assert top <= 2.0**24 * 1e-4


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_segment_cut_short_is_not_learned_from(backend: Any) -> None:
    symbols, after = text(4, 7, 2), text(5, 6, 2)
    long, short = new_learner(backend), new_learner(backend)
    block(long, symbols, 4)
    block(short, symbols[:4], 4)
    assert same(block(long, after, 4), block(short, after, 4))
    whole = new_learner(backend)
    block(whole, text(4, 8, 2), 4)
    assert not same(block(whole, after, 4), block(short, after, 4))


def test_segment_longer_than_the_block_is_not_learned_from() -> None:
    learner, after = new_learner(), text(5, 6, 2)
    block(learner, text(4, 3, 2), 100)
    assert same(block(learner, after, 2), block(new_learner(), after, 2))


def test_lanes_that_ended_are_not_learned_from() -> None:
    """The segment by hand, without the ended lanes' last gradients, ends at the same weights."""
    symbols, after, active = text(6, 4, 5), text(7, 3, 5), 2
    learner, by_hand, full = new_learner(), new_learner(), new_learner()
    block(learner, symbols, 4, active=active)
    block(full, symbols, 4)
    segment = by_hand.open_segment(5, 4, [slice(0, 5)])
    (ops,) = segment.groups
    state = ops.begin_segment(tuple(ops.zeros(width) for width in CELL.state_widths()))
    previous = np.zeros(5, np.int64)
    for step, row in enumerate(symbols.astype(np.int64)):
        ops.begin_step()
        state = CELL.step(ops, ops.symbols(previous), state)
        CELL.head(ops, state)
        ops.learn(row, (np.arange(5) < (active if step == 3 else 5)).astype(np.float32))
        previous = row
    ops.backward()
    for task in segment.update_tasks(1):
        task()
    expected = block(by_hand, after, 4)
    assert same(block(learner, after, 4), expected)
    assert not same(block(full, after, 4), expected)


@given(seed=st.integers(0, 1000), lanes=st.integers(1, 6), steps=st.integers(1, 4), data=st.data())
@settings(max_examples=15, deadline=None)
def test_groups_and_backends_agree(seed: int, lanes: int, steps: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, lanes - 1))
    parts = [slice(0, cut), slice(cut, lanes)] if cut else [slice(0, lanes)]
    active = data.draw(st.integers(1, lanes))
    blocks = [text(seed, 9, lanes), text(seed + 1, 5, lanes)]
    one, two = new_learner(), new_learner(BACKENDS[1])
    for symbols in blocks:
        expected = block(two, symbols, steps, active=active)
        assert same(block(one, symbols, steps, parts=parts, active=active), expected)


def test_blocks_start_from_no_state_but_what_was_learned() -> None:
    symbols = text(8, 9, 3)
    learner = new_learner()
    first, second = block(learner, symbols, 3), block(learner, symbols, 3)
    assert not same(first[:1], second[:1])
    learner.reset()
    assert same(block(learner, symbols, 3), first)


def test_counts_are_valid() -> None:
    for counts in block(new_learner(), text(9, 7, 3), 2):
        assert counts.shape == (3, 256) and counts.flags.c_contiguous and counts.dtype == np.float32
        assert (counts.astype(np.int64).sum(1) == 2**24 - 256).all() and counts.min() >= 0
