"""The one interface of the exact backends, their choice, and the test each must pass before it may code.

A backend prepares weights once (`Backend.prepare`) and opens a workspace per group of lanes
(`Prepared.open`), whose `ExactOps` are the primitives that cells call. All backends give the same bits; which
one runs is never recorded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rhnzip.errors import BackendError
from rhnzip.exact.random import uniform_int8, uniform_unit
from rhnzip.exact.weights import ExactWeights, Linear


@dataclass(frozen=True)
class Settings:
    """Numbers of the update while coding, float32 (docs/learning.md).

    Attributes:
        rate: step size in the long run, in units of a weight.
        boost: how many times `rate` the first steps are larger by.
        boost_updates: after this many updates half of the boost is left.
        beta: memory of the running mean square of the gradient.
        decay: share of the way to their anchors, at first the initial weights, that the weights go at every
            PULL_EVERY-th step.
        drift: share of the way to the weights that the anchors go then.
        floor: added to the root mean square, so that tiny gradients take tiny steps.
        replay: lanes beside the coded ones that read again what was coded before.
        replay_share: of their gradients, 2^-20..1.
    """

    rate: float = 2e-4
    boost: float = 4.0
    boost_updates: float = 30.0
    beta: float = 0.99
    decay: float = 0.0
    floor: float = 1e-3
    drift: float = 0.0
    replay: int = 0
    replay_share: float = 0.0


PULL_EVERY = 16
"""Weights are pulled to their anchors once in so many steps: in the others the anchors need not be read."""


def update_numbers(settings: Settings, updates: int) -> NDArray[np.float32]:
    """(rate, beta, 1 - beta, floor, decay, drift) of update number `updates`, by single float32 operations.

    Updates count from 1. The rate falls as rate (1 + boost k / (k + updates)); the mean square starts as a
    plain mean of all gradients; decay and drift are 0 but at every PULL_EVERY-th update.
    """
    one, count, half = np.float32(1), np.float32(updates), np.float32(settings.boost_updates)
    rate = np.float32(settings.rate) * (one + np.float32(settings.boost) * (half / (half + count)))
    beta = min(np.float32(settings.beta), one - one / count)
    pull = (settings.decay, settings.drift) if updates % PULL_EVERY == 0 else (0.0, 0.0)
    return np.array((rate, beta, one - beta, settings.floor, *pull), np.float32)


class ExactOps(Protocol):
    """Primitives over the lanes of one workspace. Values, rows and products are opaque to the caller."""

    lanes: int

    def symbols(self, symbols: NDArray[np.int64]) -> Any:
        """Hand over one symbol per lane, shape (B,)."""
        ...

    def zeros(self, width: int) -> Any:
        """A value of zeros, shape (B, width)."""
        ...

    def begin_step(self) -> None:
        """Start a step: values of the step before stay valid, those before it are overwritten."""
        ...

    def rows(self, name: str, index: Any = None) -> Any:
        """Rows of table `name` by lane, or its single row for all lanes."""
        ...

    def dropout(self, name: str, x: Any) -> Any:
        """Dropout exists in training alone: returns `x`."""
        ...

    def fresh_dropout(self, name: str, x: Any) -> Any:
        """The same."""
        ...

    def linear(self, name: str, x: Any) -> Any:
        """Product of value `x` with weight `name`."""
        ...

    def highway(self, product: Any, rows: Any, s: Any, scale: str) -> Any:
        """Coupled highway update; the new value is quantised with value scale `scale`."""
        ...

    def highway_uncoupled(self, product: Any, rows: Any, s: Any, scale: str) -> Any:
        """Highway update with its own carry gate."""
        ...

    def affine(self, product: Any, rows: Any = None) -> Any:
        """A product as a value, with rows added if there are any."""
        ...

    def lookup(self, rows: Any) -> Any:
        """Rows as a value."""
        ...

    def part(self, x: Any, start: int, stop: int) -> Any:
        """Columns start..stop of a value."""
        ...

    def join(self, values: Sequence[Any]) -> Any:
        """Values side by side, in order."""
        ...

    def tanh(self, x: Any) -> Any:
        """Hyperbolic tangent."""
        ...

    def sigmoid(self, x: Any) -> Any:
        """Logistic function."""
        ...

    def add(self, x: Any, y: Any) -> Any:
        """Sum."""
        ...

    def multiply(self, x: Any, y: Any) -> Any:
        """Product, element by element."""
        ...

    def mix(self, gate: Any, x: Any, y: Any) -> Any:
        """Gate between two values: (x - y) gate + y."""
        ...

    def zoneout(self, x: Any, y: Any, share: float) -> Any:
        """What zoneout takes of a new value and an old one: its expectation, `share` of the new."""
        ...

    def scaled_norm(self, x: Any, gain: Any, shift: Any, parts: int) -> Any:
        """Layer norm of each of so many equal parts of a value, times a gain, plus a shift."""
        ...

    def lstm_cell(self, a: Any, c: Any) -> Any:
        """New cell c sigmoid(f) + sigmoid(i) tanh(j) of an LSTM, i, j, f, o the quarters of `a`."""
        ...

    def lstm_output(self, x: Any, a: Any) -> Any:
        """Output tanh(x) sigmoid(o) of an LSTM, o the last quarter of `a`."""
        ...

    def quantise(self, x: Any, scale: str) -> Any:
        """Give a value its int8 form, by value scale `scale`: linear maps may read it then."""
        ...

    def output(self, product: Any, rows: Any) -> NDArray[np.float32]:
        """Counts of the next symbol, shape (B, V), integers as float32 that sum to 2^24 - 256."""
        ...

    def floats(self, x: Any) -> NDArray[np.float32]:
        """A value's float32 content, shape (B, width)."""
        ...


class Prepared(Protocol):
    """Weights laid out for a backend."""

    def open(self, lanes: int) -> ExactOps:
        """Workspace for `lanes` lanes; may be used from one thread at a time."""
        ...


class LearningOps(ExactOps, Protocol):
    """Primitives that keep a tape."""

    def begin_segment(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Clear the tape; returns the carried state, from which no gradient flows further back."""
        ...

    def learn(self, symbols: NDArray[np.int64], shares: NDArray[np.float32]) -> None:
        """Tell the symbols that the last counts were for, and the share of each lane's gradient, both (B,).

        Shares are 1, 0 for lanes that have ended, 2^-20..1 for lanes that replay.
        """
        ...

    def backward(self) -> None:
        """Run the tape in reverse: gradients of every product of the segment."""
        ...


class Segment(Protocol):
    """What T steps of B lanes keep."""

    @property
    def groups(self) -> Sequence[LearningOps]:
        """Primitives over each group of lanes."""
        ...

    def update_tasks(self, threads: int) -> list[Callable[[], None]]:
        """Tasks that together take one optimiser step; any order, any thread."""
        ...


class Learner(Protocol):
    """Weights that learn, and the moments of their gradients."""

    updates: int
    """How many steps the weights have taken."""

    def reset(self) -> None:
        """Go back to the initial weights; forget all moments."""
        ...

    def open_segment(self, lanes: int, steps: int, parts: list[slice]) -> Segment:
        """Buffers for a block; `parts` are groups of lanes."""
        ...


class Backend(Protocol):
    """An implementation of the exact arithmetic on a device."""

    name: str
    device: str
    parallel: bool

    def prepare(self, weights: ExactWeights) -> Prepared:
        """Lay out weights; they are not referenced afterwards."""
        ...

    def learner(self, weights: ExactWeights, inputs: dict[str, str], settings: Settings) -> Learner:
        """Weights that learn from `weights` on; `inputs` names the value that each linear map reads."""
        ...


BACKENDS = ("numba", "reference")
ENVIRONMENT = "RHNZIP_BACKEND"

KNOWN_ANSWER = "95e5f647118fd8b5"
"""First 16 hex digits of the SHA-256 of the known-answer run; every backend must give them everywhere."""

GENERAL_ANSWER = "86f54ea0abd336a6"
"""The same of the run through the general primitives."""

_passed: set[tuple[str, str, bool]] = set()


def get_backend(name: str | None = None, device: str = "cpu", general: bool = False) -> Backend:
    """Choose, build and test a backend.

    Args:
        general: whether the general primitives will be needed, and are to be tested: a network of highway
            layers alone does without them and starts sooner.
        name: `numba` (CPU kernels) or `reference` (plain torch, any device); None takes $RHNZIP_BACKEND, else
            numba on the CPU and the reference elsewhere.
        device: torch's name of the device.

    Raises:
        BackendError: unknown name, absent device, or a failed known-answer test.
    """
    name = name or os.environ.get(ENVIRONMENT) or ("numba" if device == "cpu" else "reference")
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}; there are: {', '.join(BACKENDS)}")
    backend: Backend
    if name == "numba":
        if device != "cpu":
            raise BackendError(
                f"the numba backend runs on the cpu, not on {device!r}; use --backend reference"
            )
        from rhnzip.exact.cpu import CpuBackend

        backend = CpuBackend()
    else:
        from rhnzip.exact.reference import ReferenceBackend

        backend = ReferenceBackend(device)
    _check(backend, False)
    if general:
        _check(backend, True)
    return backend


def _check(backend: Backend, general: bool) -> None:
    """Run a known-answer test, once per process.

    Raises:
        BackendError: it fails.
    """
    run, expected = (general_answer, GENERAL_ANSWER) if general else (known_answer, KNOWN_ANSWER)
    if (backend.name, backend.device, general) in _passed:
        return
    answer = run(backend)
    if answer != expected:
        raise BackendError(
            f"backend {backend.name} on {backend.device} computes wrong bits here "
            f"({answer}, not {expected}): it cannot be used; try --backend reference, "
            "and please report this machine"
        )
    _passed.add((backend.name, backend.device, general))


def known_answer(backend: Backend) -> str:
    """Run small networks at the extremes of the arithmetic through every primitive; digest all their bits."""
    digest = hashlib.sha256()
    for units, lanes, gain in ((24, 5, 0.02), (1056, 17, 8.0)):
        _run_frozen(backend, _known_step, units, lanes, gain, digest)
    _run_learning(backend, _known_step, 0.02, digest)
    return digest.hexdigest()[:16]


def general_answer(backend: Backend) -> str:
    """The same through the general primitives."""
    digest = hashlib.sha256()
    for units, lanes, gain in ((24, 5, 0.02), (24, 3, 8.0)):
        _run_frozen(backend, _general_step, units, lanes, gain, digest)
    _run_learning(backend, _general_step, 8.0, digest)
    return digest.hexdigest()[:16]


KnownStep = Callable[[ExactOps, Any, NDArray[np.int64]], tuple[Any, NDArray[np.float32]]]


def _run_frozen(
    backend: Backend, known_step: KnownStep, units: int, lanes: int, gain: float, digest: Any
) -> None:
    ops = backend.prepare(_extreme_weights(units, gain)).open(lanes)
    s = ops.zeros(units)
    for step in range(4):
        ops.begin_step()
        s, counts = known_step(ops, s, _known_symbols(lanes, step))
        digest.update(ops.floats(s).tobytes() + counts.tobytes())


def _run_learning(backend: Backend, known_step: KnownStep, gain: float, digest: Any) -> None:
    weights = _extreme_weights(24, gain)
    inputs = {"a": "state", "u": "state", "output": "wide"}
    settings = Settings(
        rate=2.0**-6, boost=3.0, boost_updates=5.0, beta=0.75, decay=0.3, floor=2.0**-16, drift=0.1
    )
    learner = backend.learner(weights, inputs, settings)
    shares = np.array((1, 0.3, 1, 1, 1), np.float32)
    for pulled in (False, True):
        learner.reset()
        segment = learner.open_segment(5, 3, [slice(0, 5)])
        ops = segment.groups[0]
        s = ops.zeros(24)
        for number in range(3):
            (s,) = ops.begin_segment((s,))
            # the second segment reads other symbols than the first and third
            for step in range(3 * (number % 2), 3 * (number % 2) + 3):
                ops.begin_step()
                s, counts = known_step(ops, s, _known_symbols(5, step))
                ops.learn(_known_symbols(5, step + 1), shares * (np.arange(5) < 5 - step % 3))
                digest.update(ops.floats(s).tobytes() + counts.tobytes())
            ops.backward()
            if pulled:
                learner.updates = PULL_EVERY * (number + 1) - 1
            for task in segment.update_tasks(1):
                task()


def _known_symbols(lanes: int, step: int) -> NDArray[np.int64]:
    return (np.arange(lanes, dtype=np.int64) * 37 + step * 101) % 256


def _known_step(ops: ExactOps, s: Any, symbols: NDArray[np.int64]) -> tuple[Any, NDArray[np.float32]]:
    """A step with both kinds of highway layer, one quantised for the other to read."""
    s = ops.highway(ops.linear("a", s), ops.rows("input", ops.symbols(symbols)), s, "state")
    s = ops.highway_uncoupled(ops.linear("u", s), ops.rows("bias"), s, "wide")
    return s, ops.output(ops.linear("output", s), ops.rows("output_bias"))


def _general_step(ops: ExactOps, s: Any, symbols: NDArray[np.int64]) -> tuple[Any, NDArray[np.float32]]:
    """A step of no particular network that calls every general primitive, wide values among its inputs."""
    units = ops.floats(s).shape[1]
    a = ops.affine(ops.linear("a", s), ops.rows("input", ops.symbols(symbols)))
    new, gate = ops.tanh(ops.part(a, 0, units)), ops.sigmoid(ops.part(a, units, 2 * units))
    u = ops.add(ops.affine(ops.linear("u", s)), ops.lookup(ops.rows("bias")))
    wide = ops.multiply(ops.part(u, units, 2 * units), ops.part(u, 2 * units, 3 * units))
    wide = ops.scaled_norm(wide, ops.add(new, gate), gate, 1)
    both = ops.join([ops.part(new, 0, 9), ops.part(gate, 9, units)])
    mixed = ops.mix(gate, both, ops.part(u, 0, units))
    quarters = ops.join([u, new])
    cell = ops.lstm_cell(ops.scaled_norm(quarters, ops.join([a, a]), ops.join([u, gate]), 4), mixed)
    out = ops.lstm_output(cell, quarters)
    s = ops.quantise(ops.zoneout(out, ops.fresh_dropout("gate", s), 0.7), "state")
    read = ops.quantise(ops.add(wide, ops.multiply(s, s)), "wide")
    return s, ops.output(ops.linear("output", read), ops.rows("output_bias"))


def _extreme_weights(units: int, gain: float) -> ExactWeights:
    """Weights from the integer generator: whole columns at +-127, zero scales, tables down to 2^-60."""
    linears, tables = {}, {}
    for name, columns in (("a", 2 * units), ("u", 3 * units), ("output", 256)):
        weight = uniform_int8(f"known-answer {name}", units * columns).reshape(units, columns)
        weight[:, 0], weight[:, 1] = 127, -127
        scale = uniform_unit(f"known-answer scale {name}", columns) * np.float32(gain / 4096)
        scale[2], scale[3] = 0.0, np.float32(2.0**-40)
        linears[name] = Linear(weight, scale)
    for name, rows, columns in (
        ("input", 256, 2 * units),
        ("bias", 1, 3 * units),
        ("output_bias", 1, 256),
    ):
        unit = uniform_unit(f"known-answer {name}", rows * columns)
        table = (unit - np.float32(0.5)) * np.float32(8 * gain)
        table[:2] = np.float32(2.0**-60), np.float32(-(2.0**20))
        tables[name] = table.reshape(rows, columns)
    return ExactWeights(linears, tables, {"state": 127.0, "wide": 21.5})
