"""Learning: gradients against float64 autograd, the update against its rule, backends against each other."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhnzip.exact import learner as cpu_learner
from rhnzip.exact import product
from rhnzip.exact.backend import PULL_EVERY, Settings, update_numbers
from rhnzip.exact.constants import HUGE, TINY
from rhnzip.exact.cpu import CpuBackend
from rhnzip.exact.reference import ReferenceBackend
from rhnzip.exact.weights import ExactWeights, Linear
from rhnzip.models.rhn import RHN, RHNConfig

ROOT = Path(__file__).parents[2]
F = np.float32
Snapshot = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A network, and how many lanes of how many steps it learns from at once."""

    seed: int
    lanes: int
    steps: int
    units: int
    depth: int
    coupled: bool
    gain: float = 1.0
    extremes: bool = False

    def cell(self) -> RHN:
        return RHN(RHNConfig(self.units, self.depth, coupled=self.coupled))

    def weights(self) -> ExactWeights:
        """Random weights, of about `gain` over the square root of K; `extremes` spoils a fifth of them."""
        rng = np.random.default_rng(self.seed)
        width = self.cell().gates * self.units
        value_scale = 127.0 if self.coupled else 40.0

        def sprinkle(values: NDArray[np.float32], extremes: list[float]) -> NDArray[np.float32]:
            values[np.abs(values) < TINY] = 0
            chosen = rng.random(values.shape) < (0.2 if self.extremes else 0)
            return np.where(chosen, rng.choice(np.array(extremes, F), values.shape), values).astype(F)

        def linear(columns: int) -> Linear:
            weight = rng.integers(-127, 128, (self.units, columns)).astype(np.int8)
            scale = self.gain * (0.5 + rng.random(columns)) / (73 * self.units**0.5 * value_scale)
            return Linear(weight, sprinkle(scale.astype(F), [0.0, 2.0**-60, 2.0**-40, 1.0, 2.0**40]))

        def table(rows: int, columns: int) -> NDArray[np.float32]:
            values = (rng.standard_normal((rows, columns)) * self.gain).astype(F)
            return sprinkle(values, [0.0, 2.0**-60, -(2.0**-60), 6.0, -12.0, 2.0**40, -(2.0**40)])

        layers = range(self.depth)
        weights = ExactWeights(
            {f"recurrent.{layer}": linear(width) for layer in layers} | {"output": linear(256)},
            {"input": table(256, width)}
            | {f"bias.{layer}": table(1, width) for layer in layers[1:]}
            | {"output_bias": table(1, 256)},
            {"state": value_scale},
        )
        weights.check()
        return weights

    def symbols(self, segments: int) -> NDArray[np.int64]:
        """Bytes by step and lane, from a small alphabet: table rows come up again."""
        rng = np.random.default_rng(self.seed + 1)
        return rng.integers(97, 105, (segments * self.steps, self.lanes))


def cases(extremes: bool = False) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        lanes=st.integers(1, 6),
        steps=st.integers(1, 4),
        units=st.integers(1, 12),
        depth=st.integers(1, 3),
        coupled=st.booleans(),
        gain=st.sampled_from([1e-6, 0.1, 3.0, 100.0]) if extremes else st.sampled_from([0.3, 1.0]),
        extremes=st.just(extremes),
    )


SETTINGS = st.builds(
    Settings,
    rate=st.sampled_from([0.0, 2.0**-60, 1e-4, 1e-2, 1.0]),
    boost=st.sampled_from([0.0, 4.0, 2.0**20]),
    boost_updates=st.sampled_from([2.0**-20, 3.0, 2.0**20]),
    beta=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    decay=st.sampled_from([0.0, 1e-3, 1.0]),
    floor=st.sampled_from([2.0**-40, 1e-3, 1.0]),
    drift=st.sampled_from([0.0, 2.0**-60, 0.1, 1.0]),
)
STEADY = Settings(rate=2e-3, boost=4.0, boost_updates=3.0, beta=0.9, decay=0.125, floor=1e-3, drift=0.25)
BACKENDS: list[Any] = [CpuBackend(), ReferenceBackend()]


def new_learner(case: Case, chosen: Settings, backend: Any = BACKENDS[0]) -> Any:
    return backend.learner(case.weights(), case.cell().inputs(), chosen)


class Run:
    """Drives a learner through segments of symbols, as a block does."""

    def __init__(self, case: Case, learner: Any, cuts: tuple[int, ...] = (), threads: int = 1) -> None:
        """Lanes are grouped between the `cuts`."""
        bounds = sorted({0, case.lanes, *(cut for cut in cuts if cut < case.lanes)})
        self.parts = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        self.cell, self.learner, self.threads = case.cell(), learner, threads
        self.segment = learner.open_segment(case.lanes, case.steps, self.parts)
        self.states = [(ops.zeros(case.units),) for ops in self.segment.groups]
        self.previous = np.zeros(case.lanes, np.int64)

    def forward_and_backward(
        self, symbols: NDArray[np.int64], active: int | None = None
    ) -> list[NDArray[np.float32]]:
        """Counts of one segment of symbols, (T, B); at its last step only `active` lanes have a byte."""
        groups = list(zip(self.segment.groups, self.parts, strict=True))
        self.states = [ops.begin_segment(s) for ops, s in zip(self.segment.groups, self.states, strict=True)]
        self.carried = [s[0] for s in self.states]
        every_count = []
        for step, row in enumerate(symbols):
            counts = []
            for g, (ops, part) in enumerate(groups):
                ops.begin_step()
                self.states[g] = self.cell.step(ops, ops.symbols(self.previous[part].copy()), self.states[g])
                counts.append(self.cell.head(ops, self.states[g]).copy())
            lanes = len(row) if active is None or step < len(symbols) - 1 else active
            self.previous[:lanes] = row[:lanes]
            for ops, part in groups:
                ops.learn(self.previous[part], (np.arange(part.start, part.stop) < lanes).astype(np.float32))
            every_count.append(np.concatenate(counts))
        for ops, _ in groups:
            ops.backward()
        return every_count

    def learn(self, symbols: NDArray[np.int64], active: int | None = None) -> list[NDArray[np.float32]]:
        """The same, and take a step on all weights; in reverse task order, since any will do."""
        counts = self.forward_and_backward(symbols, active)
        for task in reversed(self.segment.update_tasks(self.threads)):
            task()
        return counts


def snapshot(learner: Any) -> Snapshot:
    """All that a learner keeps."""
    content = {f"weight {name}": product.weight.t() for name, product in learner.maps.items()}
    for kind in ("column_scales", "theta", "moments", "tables", "anchors"):
        content |= {f"{kind} {name}": value for name, value in getattr(learner, kind).items()}
    return {name: np.array(np.asarray(value), order="C") for name, value in sorted(content.items())}


def outcome(
    case: Case,
    chosen: Settings,
    backend: Any,
    cuts: tuple[int, ...] = (),
    threads: int = 1,
) -> list[bytes]:
    """Bytes of all counts, of what was kept after each segment, of the states; the last step is ragged."""
    segments = 3
    learner = new_learner(case, chosen, backend)
    learner.updates = PULL_EVERY - 2  # the second step pulls
    run, symbols, out = Run(case, learner, cuts, threads), case.symbols(segments), []
    for number in range(segments):
        part = symbols[number * case.steps :][: case.steps]
        active = max(1, case.lanes - 2) if number == segments - 1 else None
        out += [counts.tobytes() for counts in run.learn(part, active)]
        out += [value.tobytes() for value in snapshot(learner).values()]
    states = [ops.floats(s[0]) for ops, s in zip(run.segment.groups, run.states, strict=True)]
    return [*out, np.concatenate(states).tobytes()]


# Gradients.

Double = NDArray[np.float64]


@dataclass
class Gradients:
    """Of the summed cost: by what a map gives, (T, B, N); by weight, (N, K); by table; by carried state."""

    before: dict[str, Double]
    weights: dict[str, Double]
    tables: dict[str, Double]
    carried: Double


def table_of(name: str) -> str:
    return {"recurrent.0": "input", "output": "output_bias"}.get(name, name.replace("recurrent", "bias"))


def exact_gradients(case: Case, run: Run) -> tuple[Gradients, dict[str, Double]]:
    """What the tape left, and the int8 inputs of each map, (T, B, K). Takes a step to see the sums.

    After the first step of all, the second moment is the gradient squared; the step tells its sign.
    """

    def whole(values: Any) -> Double:
        array = np.array([np.asarray(value) for value in values], np.float64)
        return array.reshape(case.steps, case.lanes, -1)

    uses = run.segment.uses
    before = {name: whole(use.gradients) for name, use in uses.items()}
    inputs = {name: whole(use.inputs) for name, use in uses.items()}
    carried = np.concatenate([np.asarray(value.gradient) for value in run.carried]).astype(np.float64)
    old = snapshot(run.learner)
    for task in run.segment.update_tasks(1):
        task()
    new = snapshot(run.learner)

    def gradient(values: str, moments: str) -> Double:
        direction = np.sign(old[values].astype(np.float64) - new[values])
        return np.asarray(direction * np.sqrt(new[moments].astype(np.float64)))

    weights = {name: gradient(f"theta {name}", f"moments {name}") for name in uses}
    tables = {name: gradient(f"tables {name}", f"moments {name}") for name in map(table_of, uses)}
    return Gradients(before, weights, tables, carried), inputs


def true_gradients(
    case: Case,
    symbols: NDArray[np.int64],
    active: int,
    inputs: dict[str, Double],
    forced: Gradients | None = None,
) -> tuple[Gradients, list[list[list[Double]]]]:
    """Gradients of the dequantised network by autograd in float64, straight through its int8 `inputs`.

    With `forced`, what flows on from a map is what those say stands before it: every stage is on its own.
    Also h, t, c and s of every step and layer.
    """
    exact, units = case.weights(), case.units
    f = exact.scales["state"]
    w = {n: torch.tensor(x.weight * x.scale.astype(np.float64) * f) for n, x in exact.linears.items()}
    tables = {n: torch.tensor(x.astype(np.float64)) for n, x in exact.tables.items()}
    s = carried = torch.zeros(case.lanes, units, dtype=torch.float64)
    for leaf in (*w.values(), *tables.values(), carried):
        leaf.requires_grad_()
    before = {name: np.zeros((case.steps, case.lanes, x.shape[1])) for name, x in w.items()}
    gates: list[list[list[Double]]] = []
    loss: Any = 0.0
    previous = torch.zeros(case.lanes, dtype=torch.int64)

    def affine(name: str, x: Any, step: int, row: Any) -> Any:
        def found(gradient: Any) -> Any:
            before[name][step] = np.asarray(gradient)
            return None if forced is None else torch.from_numpy(forced.before[name][step])

        quantised = torch.tensor(inputs[name][step]) / f
        a = (x + (quantised - x).detach()) @ w[name] + tables[table_of(name)][row]
        a.register_hook(found)
        return a

    for step, row in enumerate(symbols):
        gates.append([])
        for layer in range(case.depth):
            a = affine(f"recurrent.{layer}", s, step, 0 if layer else previous)
            h, t = torch.tanh(a[:, :units]), torch.sigmoid(a[:, units : 2 * units])
            c = 1 - t if case.coupled else torch.sigmoid(a[:, 2 * units :])
            gates[-1].append([np.asarray(x.detach()) for x in (h, t, c, s)])
            s = h * t + s * c
        lanes = active if step == case.steps - 1 else case.lanes
        log_p = torch.log_softmax(affine("output", s, step, 0), 1)
        previous = torch.from_numpy(row)
        loss = loss - log_p[torch.arange(lanes), previous[:lanes]].sum()
    loss.backward()
    weights = {name: np.asarray(x.grad).T for name, x in w.items()}
    return Gradients(
        before, weights, {n: np.asarray(x.grad) for n, x in tables.items()}, np.asarray(carried.grad)
    ), gates


def bounds(
    case: Case, exact: Gradients, inputs: dict[str, Double], used: NDArray[np.int64], gates: Any
) -> Gradients:
    """How far each stage may be off: rows and columns are rounded to 127ths of their largest, halves away."""
    weights, f = case.weights(), case.weights().scales["state"]
    before = {name: np.zeros_like(value) for name, value in exact.before.items()}
    e = np.zeros((case.lanes, case.units))  # of the gradient at the state

    def into_input(name: str, step: int) -> Double:
        linear = weights.linears[name]
        top = np.abs(exact.before[name][step] * linear.scale.astype(np.float64)).max(1, keepdims=True)
        return np.asarray(top / 254 * np.abs(linear.weight.astype(np.float64)).sum(1) * f)

    for step in reversed(range(case.steps)):
        before["output"][step] = OUTPUT
        e = e + into_input("output", step)
        for layer in reversed(range(case.depth)):
            h, t, c, s = gates[step][layer]
            parts = [e * t * (1 - h * h), e * t * (1 - t) * np.abs(h - s if case.coupled else h)]
            if not case.coupled:
                parts.append(e * c * (1 - c) * np.abs(s))
            before[f"recurrent.{layer}"][step] = np.concatenate(parts, 1) + POINTWISE
            e = e * c + POINTWISE + into_input(f"recurrent.{layer}", step)

    of_weights, of_tables = {}, {}
    for name, value in exact.before.items():
        flat = value.reshape(-1, value.shape[2])
        half = np.abs(flat).max(0) / 254
        of_weights[name] = half[:, None] * np.abs(inputs[name].reshape(len(flat), -1)).sum(0) / f
        rows = used if name == "recurrent.0" else np.zeros_like(used)
        size = len(exact.tables[table_of(name)])
        of_tables[table_of(name)] = np.bincount(rows.reshape(-1), minlength=size)[:, None] * half
    return Gradients(before, of_weights, of_tables, e)


OUTPUT = 2.0**-10
"""Error of a probability: logits are rounded to 1024ths of an octave, counts to 2^-24 of the whole."""

POINTWISE = 2.0**-10
"""Error of a gate's gradient, of the order of 1, beside that: tanh is a rational function."""

LOUD = Settings(rate=2.0**-6, boost=0.0, floor=2.0**-40)
"""A first step of 2^-6 against each gradient of more than 2^-30."""


def by_column(*gradients: Gradients) -> Iterator[tuple[Double, ...]]:
    """The same gradient of each, (any, columns)."""
    for name, first in gradients[0].before.items():
        yield tuple(g.before[name].reshape(-1, first.shape[2]) for g in gradients)
        yield tuple(g.weights[name].T for g in gradients)
        yield tuple(g.tables[table_of(name)] for g in gradients)
    yield tuple(g.carried for g in gradients)


@given(case=cases(), backend=st.sampled_from(BACKENDS), data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_stage_gives_the_gradients_of_autograd(case: Case, backend: Any, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, case.lanes))
    run, symbols = Run(case, new_learner(case, LOUD, backend)), case.symbols(1)
    run.forward_and_backward(symbols, active)
    exact, inputs = exact_gradients(case, run)
    true, gates = true_gradients(case, symbols, active, inputs, exact)
    used = np.concatenate([np.zeros((1, case.lanes), np.int64), symbols[:-1]])
    for value, expected, error in by_column(exact, true, bounds(case, exact, inputs, used, gates)):
        assert value.shape == expected.shape == error.shape
        assert (np.abs(value - expected) <= 1.001 * error + 1e-6).all()
    assert (exact.before["output"][-1, active:] == 0).all()


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_gradients_are_those_of_autograd(coupled: bool, backend: Any) -> None:
    """What all the rounding comes to: a root mean square of 3/127 of a column's largest gradient.

    Sums over a segment cancel and their errors do not: weights and tables lose some more of what is left.
    """
    case = Case(5, lanes=8, steps=8, units=24, depth=2, coupled=coupled)
    run, symbols = Run(case, new_learner(case, LOUD, backend)), case.symbols(1)
    run.forward_and_backward(symbols)
    exact, inputs = exact_gradients(case, run)
    true, _ = true_gradients(case, symbols, case.lanes, inputs)
    for name, value in exact.before.items():
        error = (value - true.before[name]) / np.abs(true.before[name]).max((0, 1))
        assert np.sqrt((error**2).mean()) <= 3 / 127
    for value, expected in by_column(exact, true):
        assert np.linalg.norm(value - expected) <= 0.1 * np.linalg.norm(expected)
    stages, _ = true_gradients(case, symbols, case.lanes, inputs, exact)
    for value, expected in by_column(exact, stages):
        assert np.linalg.norm(value - expected) <= 0.05 * np.linalg.norm(expected)


# Backends.


@given(
    case=cases(extremes=True),
    chosen=SETTINGS,
    cuts=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    threads=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=25, deadline=None)
def test_backends_give_the_same_bits(
    case: Case, chosen: Settings, cuts: tuple[int, ...], threads: int
) -> None:
    expected = outcome(case, chosen, BACKENDS[1])
    assert outcome(case, chosen, BACKENDS[0], cuts, threads) == expected
    torch.set_flush_denormal(True)
    try:
        flushed = [outcome(case, chosen, backend) for backend in BACKENDS]
    finally:
        torch.set_flush_denormal(False)
    assert flushed == [expected] * 2


def test_more_threads_than_columns() -> None:
    case = Case(3, lanes=2, steps=2, units=2, depth=1, coupled=True)
    assert outcome(case, STEADY, BACKENDS[0], threads=300) == outcome(case, STEADY, BACKENDS[1])


@contextmanager
def portable_products() -> Iterator[None]:
    """As where torch's own int8 product is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (product, cpu_learner):
            patch.setattr(module, "fast_product_is_right", lambda *_: False)
        yield


@given(case=cases(extremes=True), chosen=SETTINGS)
@settings(max_examples=5, deadline=None)
def test_portable_product_gives_the_same_bits(case: Case, chosen: Settings) -> None:
    expected = outcome(case, chosen, BACKENDS[0])
    with portable_products():
        assert [outcome(case, chosen, backend) for backend in BACKENDS] == [expected] * 2


def test_portable_product_is_used() -> None:
    """Forcing it must reach every product of the three kinds: forward, towards inputs, towards weights."""
    case = Case(4, lanes=2, steps=2, units=3, depth=2, coupled=True)
    for backend in BACKENDS:
        with portable_products(), pytest.MonkeyPatch.context() as patch:

            def refuse(*_: Any) -> Any:
                raise AssertionError("the fast product was used")

            for module in (product, cpu_learner):
                patch.setattr(module, "fast_product", refuse)
            outcome(case, STEADY, backend)


def digest() -> str:
    """Bits of runs in which much is tiny and much is huge, on both backends."""
    out = hashlib.sha256()
    for seed, gain in enumerate((1e-6, 1.0, 100.0)):
        case = Case(seed, 5, 3, 9, 2, coupled=seed != 1, gain=gain, extremes=True)
        chosen = Settings(rate=2.0**-60 if seed == 2 else 0.5, beta=0.9, decay=0.1, floor=2.0**-40, drift=0.1)
        for backend in BACKENDS:
            out.update(b"".join(outcome(case, chosen, backend)))
    return out.hexdigest()


FLUSHED = """
import runpy, sys, torch
assert not torch.set_flush_denormal(True) or float(torch.tensor([1e-39]) * torch.tensor([1.0])) == 0
print(runpy.run_path(sys.argv[1])["digest"]())
"""


def test_flushed_subnormals_change_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLUSHED, __file__],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()


# The update.


@pytest.mark.parametrize("updates", [1, 2, 7, 16, 1000, 1 << 22])
def test_numbers_of_an_update(updates: int) -> None:
    chosen = Settings(rate=1e-3, boost=4.0, boost_updates=7.0, beta=0.99, decay=0.25, floor=0.125, drift=0.5)
    rate, beta, rest, floor, decay, drift = (float(x) for x in update_numbers(chosen, updates))
    assert rate == pytest.approx(1e-3 * (1 + 4 * 7 / (7 + updates)), rel=1e-6)
    assert beta == pytest.approx(min(0.99, 1 - 1 / updates), rel=1e-6)
    assert rest == pytest.approx(1 - beta, abs=1e-7) and floor == 0.125
    assert (decay, drift) == ((0.25, 0.5) if updates % PULL_EVERY == 0 else (0, 0))
    assert update_numbers(chosen, updates).dtype == F


def test_boost_fades() -> None:
    chosen = Settings(rate=1.0, boost=3.0, boost_updates=10.0)
    rates = [float(update_numbers(chosen, n)[0]) for n in range(1, 200)]
    assert rates == sorted(rates, reverse=True)
    assert 1 < rates[-1] < 1.2 and rates[9] == 2.5  # half of the boost is left after 10


def quantised(columns: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Columns of (R, N) rounded to 127ths of their largest: (q, scale)."""
    top = np.abs(columns).max(0)
    some = top >= F(TINY)
    q = np.rint(np.clip(columns * (F(127) / np.where(some, top, F(1))), -127, 127))
    return np.where(some, q, 0).astype(np.int64), np.where(some, top.astype(np.float64) / 127, 0)


def step(theta: Double, v: Double, g: Double, chosen: Settings, updates: int) -> tuple[Double, Double]:
    """The rule in float64."""
    rate = chosen.rate * (1 + chosen.boost * chosen.boost_updates / (chosen.boost_updates + updates))
    beta = min(chosen.beta, 1 - 1 / updates)
    v = np.where(v == 0, g * g, beta * v + (1 - beta) * g * g)
    v[v < TINY] = 0
    return theta - rate * g / (np.sqrt(v) + chosen.floor), v


def pull(theta: Double, anchor: Double, chosen: Settings, updates: int) -> tuple[Double, Double]:
    """Weights towards anchors, then anchors towards weights, in float64."""
    if updates % PULL_EVERY:
        return theta, anchor
    theta = theta + chosen.decay * (anchor - theta)
    return theta, anchor + chosen.drift * (theta - anchor)


def close(value: NDArray[Any], expected: Double) -> None:
    assert np.allclose(value, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max() + 2.0**-60)


@given(case=cases(), backend=st.sampled_from(BACKENDS), before=st.sampled_from([0, PULL_EVERY - 2]))
@settings(max_examples=20, deadline=None)
def test_update_follows_its_rule(case: Case, backend: Any, before: int) -> None:
    learner = new_learner(case, STEADY, backend)
    learner.updates = before
    run, f = Run(case, learner), case.weights().scales["state"]
    used = np.zeros(case.lanes, np.int64)
    for updates in range(before + 1, before + 4):
        symbols = case.symbols(3)[(updates - before - 1) * case.steps :][: case.steps]
        run.forward_and_backward(symbols)
        uses, old = dict(run.segment.uses), snapshot(learner)
        # read before the step: the buffers are the next segment's
        flat = {n: np.concatenate([np.asarray(x, F) for x in use.gradients]) for n, use in uses.items()}
        x = {
            n: np.concatenate([np.asarray(x) for x in use.inputs]).astype(np.int64) for n, use in uses.items()
        }
        for task in run.segment.update_tasks(2):
            task()
        new, index = snapshot(learner), np.concatenate([used, symbols[:-1].reshape(-1)])
        used = symbols[-1]
        for name, gradients in flat.items():
            q, scale = quantised(gradients)
            g = (q.T @ x[name]) * (scale[:, None] / f)
            arguments = (old[f"{kind} {name}"].astype(np.float64) for kind in ("theta", "moments"))
            theta, v = step(*arguments, g, STEADY, updates)
            theta, anchor = pull(theta, old[f"anchors {name}"].astype(np.float64), STEADY, updates)
            close(new[f"theta {name}"], theta)
            close(new[f"anchors {name}"], anchor)
            close(new[f"moments {name}"], v)
            # the int8 weights are the new ones, to half a step
            unit = new[f"column_scales {name}"].astype(np.float64)[:, None] * f
            assert (np.abs(new[f"weight {name}"] * unit - theta) <= 0.501 * unit + 2.0**-60).all()
            # a column of nothing but zeros stays so: one weight of 0 whose input or gradient is 0
            largest = np.abs(new[f"theta {name}"]).max(1)
            assert (np.abs(new[f"weight {name}"]).max(1)[largest >= 2.0**-60] == 127).all()

            table, rows = table_of(name), index if name == "recurrent.0" else np.zeros_like(index)
            old_t, old_v = old[f"tables {table}"], old[f"moments {table}"]
            touched = np.unique(rows)
            sums = np.zeros(old_t.shape)
            np.add.at(sums, rows, q * scale)
            theta = old_t.astype(np.float64)
            theta[touched], v = step(
                theta[touched], old_v[touched].astype(np.float64), sums[touched], STEADY, updates
            )
            theta, anchor = pull(theta, old[f"anchors {table}"].astype(np.float64), STEADY, updates)
            close(new[f"tables {table}"], theta)
            close(new[f"anchors {table}"], anchor)
            close(new[f"moments {table}"][touched], v)
            others = np.setdiff1d(np.arange(len(sums)), touched)
            assert updates % PULL_EVERY == 0 or (new[f"tables {table}"][others] == old_t[others]).all()
            faded = old_v[others] * update_numbers(STEADY, updates)[1]
            faded[faded < TINY] = 0
            assert (new[f"moments {table}"][others] == faded).all()
            assert updates == before + 1 or name != "recurrent.0" or (old_v[others] > faded).any()


CASE = Case(11, lanes=3, steps=2, units=6, depth=2, coupled=True)


def test_full_decay_goes_back_to_the_initial_weights() -> None:
    learner = new_learner(CASE, replace(STEADY, decay=1.0, drift=0.0))
    before, run = snapshot(learner), Run(CASE, learner)
    for updates in range(1, PULL_EVERY + 1):
        run.learn(CASE.symbols(1))
        after = snapshot(learner)
        assert updates == PULL_EVERY or not np.allclose(after["theta output"], before["theta output"])
    for name in before:
        if name.startswith(("theta", "tables", "anchors")):
            # moved + (anchor - moved) in float32
            assert np.allclose(after[name], before[name], rtol=1e-6, atol=1e-6)
    assert any((after[name] != before[name]).any() for name in before if name.startswith("moments"))


def test_anchors_follow_the_weights() -> None:
    """Anchors that stay hold the weights back; those that follow let them go."""

    def ends(**changes: float) -> Snapshot:
        learner = new_learner(CASE, replace(STEADY, **changes))
        run = Run(CASE, learner)
        for _ in range(5 * PULL_EVERY):
            run.learn(CASE.symbols(1))
        return snapshot(learner)

    start = snapshot(new_learner(CASE, STEADY))
    held, following = ends(decay=0.5, drift=0.0), ends(decay=0.5, drift=0.5)
    for name in (name for name in start if name.startswith("theta")):
        anchors = name.replace("theta", "anchors")
        assert (held[anchors] == start[anchors]).all()
        assert (following[anchors] != start[anchors]).any()

    def distance(end: Snapshot) -> float:
        return sum(float(np.abs(end[n] - start[n]).sum()) for n in start if n.startswith("theta"))

    assert distance(following) > 1.2 * distance(held)


def test_decay_pulls_towards_the_initial_weights() -> None:
    def distance(decay: float) -> float:
        learner = new_learner(CASE, replace(STEADY, decay=decay, drift=0.0))
        before, run = snapshot(learner), Run(CASE, learner)
        for _ in range(2 * PULL_EVERY):
            run.learn(CASE.symbols(1))
        after = snapshot(learner)
        return max(float(np.abs(after[n] - before[n]).max()) for n in before if n.startswith("theta"))

    assert distance(0.0) > 2 * distance(0.9) > 0


def test_learning_lowers_the_cost() -> None:
    run, symbols = Run(CASE, new_learner(CASE, replace(STEADY, rate=0.02))), CASE.symbols(1)

    def cost() -> float:
        counts = np.array(run.learn(symbols))
        chosen = np.take_along_axis(counts, symbols[:, :, None], 2)
        return float(-np.log2((chosen + 1) / 2.0**24).mean())

    costs = [cost() for _ in range(60)]
    assert costs[-1] < 0.5 * costs[0]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_reset_goes_back_to_the_start(backend: Any) -> None:
    learner = new_learner(CASE, STEADY, backend)

    def story() -> list[bytes]:
        run, out = Run(CASE, learner), []
        for segment in (0, 1):
            out += [x.tobytes() for x in run.learn(CASE.symbols(2)[segment * CASE.steps :][: CASE.steps])]
        return out + [x.tobytes() for x in snapshot(learner).values()]

    start = snapshot(learner)
    first, again = story(), story()
    assert again != first
    learner.reset()
    assert all((start[name] == value).all() for name, value in snapshot(learner).items())
    assert story() == first


@pytest.mark.parametrize("units", [1, 6])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_learners_share_nothing(units: int, backend: Any) -> None:
    case = replace(CASE, units=units)
    weights = case.weights()
    copies = [x.weight.copy() for x in weights.linears.values()]
    one, two = (backend.learner(weights, case.cell().inputs(), STEADY) for _ in range(2))
    before, run = snapshot(two), Run(case, one)
    for _ in range(3):
        run.learn(case.symbols(1))
    assert all((before[name] == value).all() for name, value in snapshot(two).items())
    assert all((a == x.weight).all() for a, x in zip(copies, weights.linears.values(), strict=True))


# Whatever comes, numbers stay in range.


def check_range(content: Snapshot) -> None:
    for name, value in content.items():
        if name.startswith("weight"):
            assert value.dtype == np.int8 and value.min() >= -127
            continue
        size = np.abs(value)
        assert value.dtype == F and np.isfinite(value).all()
        if name.startswith("column_scales"):
            # a largest magnitude of 2^-60..2^40, over 127 and a value scale of 2^-20..2^20
            assert ((size == 0) | (size >= 2.0**-87)).all() and size.max() <= 2.0**54
        else:
            assert size.max() <= HUGE and (size[size != 0] >= TINY).all()


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(rate=1.0, boost=2.0**20, boost_updates=2.0**20, beta=1.0, decay=0.0, floor=2.0**-40),
        Settings(rate=1.0, boost=0.0, beta=0.0, decay=1.0, floor=2.0**-40, drift=0.75),
        Settings(rate=1.0, boost=0.0, beta=0.999, decay=0.0, floor=1e-3),
    ],
    ids=["wild", "decaying", "fast"],
)
@pytest.mark.parametrize("coupled", [True, False])
def test_thousands_of_updates_stay_in_range(chosen: Settings, coupled: bool) -> None:
    case = Case(21, lanes=2, steps=1, units=3, depth=2, coupled=coupled, gain=3.0, extremes=True)
    symbols = np.random.default_rng(0).integers(0, 256, (2000, 2))
    learner = new_learner(case, chosen)
    run = Run(case, learner)
    for number, row in enumerate(symbols):
        (counts,) = run.learn(row[None])
        if number % 250 == 249:
            check_range(snapshot(learner))
            assert (counts.astype(np.int64).sum(1) == 2**24 - 256).all() and counts.min() >= 0


@given(case=cases(extremes=True), chosen=SETTINGS)
@settings(max_examples=20, deadline=None)
def test_many_updates_stay_in_range_and_agree(case: Case, chosen: Settings) -> None:
    ends = []
    for backend in BACKENDS:
        learner = new_learner(case, chosen, backend)
        run = Run(case, learner)
        learner.updates = PULL_EVERY - 4
        for _ in range(8):
            run.learn(case.symbols(1))
        content = snapshot(learner)
        check_range(content)
        ends.append([value.tobytes() for value in content.values()])
    assert ends[0] == ends[1]


def test_long_wild_runs_agree() -> None:
    case = Case(31, lanes=2, steps=1, units=3, depth=1, coupled=False, gain=3.0, extremes=True)
    chosen = Settings(rate=1.0, boost=2.0**20, boost_updates=100.0, beta=0.99, decay=1e-3, floor=2.0**-40)
    symbols = np.random.default_rng(1).integers(0, 256, (300, 2))
    learners = [new_learner(case, chosen, backend) for backend in BACKENDS]
    runs = [Run(case, learner) for learner in learners]
    for row in symbols:
        one, two = (run.learn(row[None])[0] for run in runs)
        assert one.tobytes() == two.tobytes()
    one, two = (snapshot(learner) for learner in learners)
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_reference_takes_all_lanes_in_one_group() -> None:
    with pytest.raises(ValueError, match="one group"):
        new_learner(CASE, STEADY, BACKENDS[1]).open_segment(2, 1, [slice(0, 1), slice(1, 2)])
