"""The time of a step beside its own int8 products, and where a learning step's time goes.

    python benchmarks/bench_steps.py [--model MODEL] [--threads 2]

The floor of a frozen step is its matrix products alone, at the same shapes, on the same threads, weights and
inputs already in place. A learning step adds the products towards the inputs and, once a segment, towards the
weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch
from common import RESULTS, machine, table, write

from rhnzip.adaptation import LearningPredictor
from rhnzip.coding import PRESETS, load_model
from rhnzip.coding.codec import FROZEN_GROUP, LEARNING_GROUP
from rhnzip.coding.coder import Encoder
from rhnzip.coding.predictor import FrozenPredictor, lane_groups
from rhnzip.coding.workers import Workers
from rhnzip.exact.backend import get_backend
from rhnzip.exact.product import ProductMap, multiply
from rhnzip.models.modelfile import Model


def median_of(function: Callable[[], Any], seconds: float = 0.6) -> float:
    """Median seconds of a call, over calls for about `seconds`."""
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def operations(model: Model) -> int:
    """Multiplications and additions of the products of one byte, forward."""
    return sum(2 * linear.weight.size for linear in model.weights.linears.values())


def products_time(model: Model, lanes: int, workers: Workers, smallest: int) -> float:
    """Seconds of one step's forward products alone, its lanes spread over threads as the codec does."""
    maps = [ProductMap(linear.weight, torch.device("cpu")) for linear in model.weights.linears.values()]
    tasks = []
    for part in lane_groups(lanes, workers.threads, smallest):
        rows = part.stop - part.start
        inputs = [torch.randint(-127, 128, (rows, m.inner), dtype=torch.int8) for m in maps]
        sums = [torch.empty(rows, m.columns, dtype=torch.int32) for m in maps]
        fast = [m.check(rows) for m in maps]

        def task(inputs: Any = inputs, sums: Any = sums, fast: Any = fast) -> None:
            for m, x, out, ok in zip(maps, inputs, sums, fast, strict=True):
                m(x, out, fast=ok)

        tasks.append(task)
    return median_of(lambda: workers.run(tasks))


def frozen(model: Model, threads: int) -> list[list[Any]]:
    """Rows of the table for frozen steps."""
    backend, rows = get_backend("numba"), []
    prepared = backend.prepare(model.weights)
    with Workers(threads) as workers:
        for lanes in (1, 16, 64, 128, 256):
            predictor = FrozenPredictor(
                model.cell, prepared, lane_groups(lanes, threads, FROZEN_GROUP), workers.run
            )
            symbols = np.full(lanes, 101, np.int32)

            def step(predictor: FrozenPredictor = predictor, symbols: Any = symbols) -> None:
                predictor.counts()
                predictor.update(symbols)

            whole, products = median_of(step), products_time(model, lanes, workers, FROZEN_GROUP)
            encoder, counts = Encoder(), predictor.counts()
            coder = median_of(lambda e=encoder, s=symbols, c=counts: e.encode(s, c))  # type: ignore[misc]
            rate = lanes * operations(model) / products / 1e12
            total = whole + coder
            rows.append(
                [lanes, whole * 1e6, products * 1e6, coder * 1e6, total / products, rate, lanes / total / 1e3]
            )
    return rows


def learning(model: Model, threads: int) -> list[list[Any]]:
    """Rows of the table for learning steps: microseconds per step of all lanes."""
    backend, rows = get_backend("numba"), []
    for preset in PRESETS.values():
        mode = preset.trained
        if mode.settings is None:
            continue
        shape = mode.shape(preset.block_size)
        lanes, steps = shape.lanes, shape.segment
        learner = backend.learner(model.weights, model.cell.inputs(), mode.settings)
        with Workers(threads) as workers:
            parts = lane_groups(lanes, threads, LEARNING_GROUP)
            predictor = LearningPredictor(model.cell, learner, parts, steps, workers.run, threads)
            rng = np.random.default_rng(1)
            spent = {"forward": 0.0, "backward": 0.0, "update": 0.0}
            segments = 0

            def timed(name: str, tasks: Any, workers: Workers = workers, spent: Any = spent) -> None:
                start = time.perf_counter()
                workers.run(tasks)
                spent[name] += time.perf_counter() - start

            while segments < 3 or sum(spent.values()) < 2.0:
                if segments == 1:  # the first compiles and allocates
                    spent.update(dict.fromkeys(spent, 0.0))
                for _ in range(steps):
                    predictor._run = lambda tasks: timed("forward", tasks)
                    predictor.counts()
                    calls = iter(("backward", "update"))
                    predictor._run = lambda tasks, calls=calls: timed(next(calls), tasks)  # type: ignore[misc]
                    predictor.update(rng.integers(32, 127, lanes).astype(np.int32))
                segments += 1
            per_step = {name: value / ((segments - 1) * steps) for name, value in spent.items()}
            forward = products_time(model, lanes, workers, LEARNING_GROUP)
            backward = _backward_products(model, lanes, steps, workers)
            encoder = Encoder()
            symbols = np.full(lanes, 101, np.int32)
            counts = predictor._counts
            coder = median_of(lambda e=encoder, s=symbols, c=counts: e.encode(s, c))  # type: ignore[misc]
        total = sum(per_step.values()) + coder
        roofline = forward + backward
        rows.append(
            [preset.name, lanes, steps, *(value * 1e6 for value in per_step.values()), coder * 1e6]
            + [roofline * 1e6, total / roofline, lanes / total / 1e3]
        )
    return rows


def _backward_products(model: Model, lanes: int, steps: int, workers: Workers) -> float:
    """Seconds per step of the backward products alone: towards inputs, and once a segment towards weights."""
    threads = workers.threads
    maps = [torch.from_numpy(linear.weight).t().contiguous() for linear in model.weights.linears.values()]
    tasks = []
    for part in lane_groups(lanes, threads, LEARNING_GROUP):
        gradients = [torch.ones(part.stop - part.start, w.shape[0], dtype=torch.int8) for w in maps]
        tasks.append(lambda g=gradients: [multiply(x, w) for x, w in zip(g, maps, strict=True)])
    to_inputs = median_of(lambda: workers.run(tasks))
    rows = lanes * steps
    tasks = []
    for g in range(threads):
        pairs = []
        for w in maps:
            columns = w.shape[0] * (g + 1) // threads - w.shape[0] * g // threads
            pairs.append(
                (torch.ones(columns, rows, dtype=torch.int8), torch.ones(rows, w.shape[1], dtype=torch.int8))
            )
        tasks.append(lambda pairs=pairs: [multiply(x, w) for x, w in pairs])  # type: ignore[misc]
    return to_inputs + median_of(lambda: workers.run(tasks)) / steps


@click.command()
@click.option("--model", help="Model to use in place of the built-in one.")
@click.option("--threads", default=2, show_default=True)
def main(model: str | None, threads: int) -> None:
    """Measure both kinds of steps."""
    loaded = load_model(model)
    head = ["lanes", "step µs", "products µs", "coder µs", "step / products", "TOP/s", "KB/s"]
    rows = frozen(loaded, threads)
    head_learning = ["preset", "lanes", "segment", "forward µs", "backward µs", "update µs", "coder µs"]
    head_learning += ["products µs", "whole / products", "KB/s"]
    rows_learning = learning(loaded, threads)
    text = "\n".join(
        [
            f"{machine()}; {threads} threads; model {loaded.name}: {operations(loaded) / 1e6:.2f} MOP a byte",
            "",
            "Frozen: one step of all lanes, the range coder included in the last columns.",
            "",
            table(head, rows),
            "",
            "Learning: microseconds per step of all lanes; `update` is shared by the steps of a segment.",
            "",
            table(head_learning, rows_learning),
        ]
    )
    write(
        "steps",
        text,
        {"machine": machine(), "frozen": [head, *rows], "learning": [head_learning, *rows_learning]},
    )
    picture(rows)


def picture(rows: list[list[Any]]) -> None:
    """Speed against lanes, beside what the products alone would allow."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lanes = [row[0] for row in rows]
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(lanes, [row[0] / row[2] * 1e3 for row in rows], "o--", color="0.6", label="int8 products alone")
    axes.plot(lanes, [row[6] for row in rows], "o-", color="C3", label="whole step and coder")
    axes.set(xscale="log", yscale="log", xlabel="lanes", ylabel="KB/s, frozen")
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "steps.png", dpi=120)


if __name__ == "__main__":
    main()
